//! Attacks on secrets: read tokens and declared secrets, directly or through replies.
