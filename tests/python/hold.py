"""Holds the write lock of an SQLite database until it is killed: hold.py DATABASE."""

import signal
import sqlite3
import sys

database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("held", flush=True)
signal.pause()
