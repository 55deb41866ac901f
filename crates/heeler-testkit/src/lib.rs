//! What the tests of Heeler share: simulated disks, fixtures, temporary fleets.
