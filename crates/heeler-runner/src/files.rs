//! The files of a run's folder: `spec.json`, `started.json`, `asks/<id>.json`, `result.json`.
//!
//! What is read may have come with a clone: it is bounded, links are not followed, and paths in it
//! must stay in the state directory. The result is written once, into space that was reserved before
//! the agent started, so that a full disk cannot lose it. Start at [`read_spec`] and [`Reserved`].
