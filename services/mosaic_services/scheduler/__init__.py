"""The scheduler: stores runs, decides where and when each one runs, and can say why."""
