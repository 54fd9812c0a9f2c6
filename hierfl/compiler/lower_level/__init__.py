"""The lower level y(x) solved exactly: its structure, the choice of a method, the certificate, implicit differentiation."""
