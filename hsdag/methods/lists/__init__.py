"""List scheduling: place ops one after another, each where it ends or starts first."""
