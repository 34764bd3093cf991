"""Files that lie: makes them, case by case, for the readers in Python and for the loader in C++."""
