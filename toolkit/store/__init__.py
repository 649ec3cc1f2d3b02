"""The engine store: fingerprint, lock, recheck, stage, verify, publish by rename."""

from toolkit.store.hashes import fingerprint, hash_files
from toolkit.store.locks import Use
from toolkit.store.manifest import Fault
from toolkit.store.store import Entry, Pruned, Store

__all__ = ["Entry", "Fault", "Pruned", "Store", "Use", "fingerprint", "hash_files"]
