"""`python -m firstbad.agent`: see launcher.py."""

from firstbad.agent.launcher import main

if __name__ == "__main__":
    main()
