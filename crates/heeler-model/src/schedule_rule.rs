//! Text form of a schedule's trigger. Start at [`rule_text`] and [`parse_rule`].

use heeler_config::{ConfigDuration, CronExpr, ScheduleTrigger};

/// Returns a text form of a trigger, to detect that it has changed.
pub fn rule_text(trigger: &ScheduleTrigger) -> String {
    match trigger {
        ScheduleTrigger::Interval(period) => format!("every {period}"),
        ScheduleTrigger::Cron { expr, zone: Some(zone) } => {
            format!("cron {} in {}", expr.as_str(), zone.name())
        }
        ScheduleTrigger::Cron { expr, zone: None } => format!("cron {}", expr.as_str()),
        ScheduleTrigger::Watch { .. } => "watch".to_owned(),
        ScheduleTrigger::Webhook(_) => "webhook".to_owned(),
        ScheduleTrigger::Chat => "chat".to_owned(),
    }
}

/// Parses an interval or a cron expression. The time zone is taken from `now`, the current trigger.
pub fn parse_rule(text: &str, now: &ScheduleTrigger) -> Option<ScheduleTrigger> {
    if let Ok(period) = text.parse::<ConfigDuration>() {
        return Some(ScheduleTrigger::Interval(period));
    }
    // The text has no zone, so the schedule keeps the one it has.
    let zone = match now {
        ScheduleTrigger::Cron { zone, .. } => zone.clone(),
        _ => None,
    };
    text.parse::<CronExpr>().ok().map(|expr| ScheduleTrigger::Cron { expr, zone })
}
