"""``python -m hierfl``, where the command ``hierfl`` is not on the path."""

from hierfl.command.main import main

if __name__ == "__main__":
    main()
