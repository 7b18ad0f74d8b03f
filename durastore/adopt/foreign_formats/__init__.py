"""Files in which other tools keep hidden states, read into plain arrays and recognised by their keys."""
