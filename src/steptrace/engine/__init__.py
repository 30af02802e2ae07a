"""The engine that measures a training, a study's own or anybody's: its steps, their times, traces and source lines."""
