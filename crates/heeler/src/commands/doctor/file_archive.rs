//! Check of the archive of files in an object store: whether this host can write and read it.
//!
//! Start at [`check`].

use heeler_engine::check_file_archive;
use heeler_store::doctor::{Finding, FindingArea, FindingSeverity};

use crate::context::CommandContext;
use crate::fleet_config;
use crate::output;
use crate::process_env;
use crate::text_file::read_text;
use crate::trust;

/// Checks the object store, if the config names one that a person has agreed to. An unreadable config is
/// not a problem of it.
pub(super) fn check(context: &CommandContext) -> Option<Finding> {
    let file = context.config.as_deref()?;
    let loaded = fleet_config::try_load(context, file, &read_text).ok()?.ok()?;
    let archive = &loaded.fleets.first()?.archive;
    trust::check(context, &loaded).ok()?;
    let env = fleet_config::environment(context, file).ok()?;
    let problem = check_file_archive(archive, &env, process_env::now())?.err()?;
    Some(Finding {
        severity: FindingSeverity::Warning,
        area: FindingArea::Hosts,
        subject: archive.to.to_string(),
        problem: format!("the file archive cannot be used: {}", output::one_line(&problem)),
        remedy: "check the bucket, its region and the credentials: docs/hosts.md".to_owned(),
        repair: None,
    })
}
