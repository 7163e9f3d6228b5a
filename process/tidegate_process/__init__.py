"""What every process of Tidegate has in common: settings, log, listeners, questions to pods."""
