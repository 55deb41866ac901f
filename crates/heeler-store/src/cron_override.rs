//! Changes of a workflow's cron, as changes of the schedule that represents it. Start at
//! [`cron_override`].

use heeler_config::{CRON_SUFFIX, LoadedConfig, ScheduleConfig};
use heeler_model::calendar::ScheduleKey;

use crate::db::overrides::CronOverride;
use crate::db::schedules::ScheduleOverrideRecord;

/// Converts a change of a workflow's cron to a change of the corresponding schedule.
pub fn cron_override(
    loaded: &LoadedConfig,
    row: CronOverride,
) -> Option<(ScheduleKey, ScheduleOverrideRecord)> {
    let CronOverride { name, enabled, schedule: text, at, by } = row;
    // A cron file is a schedule of the agent that executes its workflow.
    let is_it = |it: &ScheduleConfig| it.is_cron_file() && cron_name(it) == name;
    let agents = loaded.agents.iter();
    let (agent, schedule) = agents
        .flat_map(|agent| agent.schedules.iter().map(move |schedule| (agent, schedule)))
        .find(|(_, schedule)| is_it(schedule))?;
    let (agent, schedule) = (agent.name.to_string(), schedule.name.clone());
    let key = ScheduleKey { agent: agent.clone(), schedule: schedule.clone() };
    Some((key, ScheduleOverrideRecord { agent, schedule, enabled, text, at, by }))
}

/// Returns the name of the workflow cron that a schedule represents.
pub fn cron_name(schedule: &ScheduleConfig) -> &str {
    schedule.name.strip_suffix(CRON_SUFFIX).unwrap_or(&schedule.name)
}
