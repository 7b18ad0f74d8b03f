"""Files that durastore did not write: looked into, kept as they are under `files/`, proven like packs of one."""
