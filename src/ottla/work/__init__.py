"""Work queues for programs: `ottla.Queue` and `ottla.AsyncQueue`."""
