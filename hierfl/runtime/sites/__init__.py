"""Federations over sites: processes that hold the data of one client or of many, and answer named messages; whatever carries these."""
