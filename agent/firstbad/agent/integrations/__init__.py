"""
Callbacks for training frameworks: the guard and the identity of the data, in the framework's own words.

    from firstbad.agent.integrations.transformers import FirstbadCallback   # Hugging Face Trainer
    from firstbad.agent.integrations.lightning import FirstbadCallback      # Lightning Trainer
    from firstbad.agent.integrations.fabric import FirstbadCallback         # Lightning Fabric

None is needed for the decision itself: `torchrun ... -m firstbad.agent train.py` guards all of them without a change.
A callback makes the guard where nothing has made one, and puts the trainer's own step count, sample ids, shards and
valid tokens into the ledger. Accelerate and plain loops call `firstbad.agent.batch` themselves.

Importing these modules imports no framework; asking one for its FirstbadCallback does.
"""
