"""The examples are run for real, in processes of their own, and must print what they promise."""
