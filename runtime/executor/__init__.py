"""The work-conserving engine for all devices: tasks, resources, an event loop, back ends."""
