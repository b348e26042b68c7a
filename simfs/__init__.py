"""The ground a storage engine stands on: real disks, and disks that lose power."""
