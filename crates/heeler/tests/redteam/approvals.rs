//! Attacks on approvals: make a person approve something other than the text they see.
