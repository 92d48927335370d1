"""What comes next: a mixture of softmaxes over a history, fitted and tried on withheld items."""
