"""
The last module that the warm server of ranks imports: what is loaded by now is left out of every later collection.

Otherwise the first walk over all objects in a rank (a collection, or the guard looking for optimizers) writes to every
page that it shares with the server, and the copies cost half a second a rank.
"""

import atexit
import gc

gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)  # so that the server itself ends as it would have
