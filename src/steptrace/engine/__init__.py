"""The engine that measures any training, a study's or anybody's: its steps, their times, traces and source lines."""
