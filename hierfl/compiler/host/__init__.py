"""The host engine: small lower levels solved by DAQP and Clarabel, with active sets and multipliers; nothing is compiled."""
