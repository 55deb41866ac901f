//! Questions to real state directories.

use camino::Utf8Path;
use heeler_store::StateDir;
use jiff::tz::TimeZone;

use crate::records::READERS_KEPT;
use crate::{Known, QueryErrorKind, Records};

fn nothing_known() -> Known {
    Known { config: None, loaded: None, env: Default::default(), home: None, zone: TimeZone::UTC }
}

#[test]
fn a_fleet_without_a_database_is_trouble_and_no_panic() {
    let temp = tempfile::tempdir().unwrap();
    let dir = StateDir::create(Utf8Path::from_path(temp.path()).unwrap()).unwrap();
    let records = Records::new(dir, nothing_known);
    let error = records.jobs(&Default::default()).unwrap_err();
    assert_eq!(error.kind(), QueryErrorKind::Trouble);
    const { assert!(READERS_KEPT > 0) };
}
