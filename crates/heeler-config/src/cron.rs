//! Cron expressions and time zones, validated when config is read.
//!
//! Time zones come from the database built into the program, so a config has the same meaning on
//! every machine; nothing is read from disk. Start at [`CronExpr`].

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Zoned;
use jiff::civil::date;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::text::did_you_mean;

const SHORTHANDS: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

const FIELDS: [(&str, &str); 5] = [
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day of the month", "1-31 or L"),
    ("month", "1-12 or JAN-DEC"),
    ("weekday", "0-7 or SUN-SAT"),
];

/// Maximum number of cached parsed expressions. Each takes more than 5 kB, because croner stores a
/// byte for every year; a fleet of 10,000 schedules cannot keep them all parsed.
const PARSED_CACHE_MAX: usize = 256;

/// Cron expression of five fields, or a shorthand such as `@daily`, that matches at least one date.
#[derive(Clone, PartialEq)]
pub struct CronExpr {
    text: Arc<str>,
}

impl CronExpr {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the next due time after `after`, in its time zone, by the rules of Vixie cron: a
    /// time skipped by daylight saving is due at the end of the gap, and a repeated time is due
    /// once.
    pub fn next_after(&self, after: &Zoned) -> Option<Zoned> {
        parse_cached(&self.text)?.find_next_occurrence(after, false).ok()
    }
}

static PARSED_CACHE: LazyLock<Mutex<HashMap<Arc<str>, Arc<Cron>>>> = LazyLock::new(Mutex::default);

/// Returns the parsed expression from the cache, or parses it. Returns `None` only if the text is
/// not a valid expression.
fn parse_cached(text: &Arc<str>) -> Option<Arc<Cron>> {
    // A panic cannot leave the map half changed, so a poisoned lock is still usable.
    let mut known = PARSED_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cron) = known.get(text) {
        return Some(Arc::clone(cron));
    }
    // Cleared as a whole: the cache only saves time, so any policy is correct.
    if known.len() >= PARSED_CACHE_MAX {
        known.clear();
    }
    let cron = Arc::new(cron_parser().parse(text).ok()?);
    known.insert(Arc::clone(text), Arc::clone(&cron));
    Some(cron)
}

fn cron_parser() -> CronParser {
    // Five fields only, so that an expression means the same to every cron.
    CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build()
}

impl fmt::Debug for CronExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CronExpr({:?})", self.text)
    }
}

impl FromStr for CronExpr {
    type Err = String;
    fn from_str(text: &str) -> Result<CronExpr, String> {
        let text = text.trim();
        check_form(text)?;
        let parser = cron_parser();
        // The parser does not name the field, so each is tried alone.
        let cron = parser.parse(text).map_err(|_| describe_faulty_field(text, &parser))?;
        // A fixed date, so that the answer does not depend on the clock.
        let start = date(2024, 1, 1).at(0, 0, 0, 0).to_zoned(TimeZone::UTC);
        let never = "it is never due: no date matches".to_owned();
        let start = start.map_err(|_| never.clone())?;
        cron.find_next_occurrence(&start, true).map_err(|_| never)?;
        Ok(CronExpr { text: text.into() })
    }
}

fn check_form(text: &str) -> Result<(), String> {
    if text.starts_with('@') {
        return match SHORTHANDS.contains(&text.to_ascii_lowercase().as_str()) {
            true => Ok(()),
            false => Err(format!("there are only {}", SHORTHANDS.join(", "))),
        };
    }
    match text.split_whitespace().count() {
        5 if !text.contains('@') => Ok(()),
        // The most common mistake, from cron dialects with seconds.
        6 => Err("it has six fields: remove the seconds, the first field is the minute".to_owned()),
        count => Err(format!("it has {count} fields: minute hour day month weekday are needed")),
    }
}

/// Names the faulty field. Each field is parsed alone, because the parser does not report which one
/// is wrong. The text may come from a variable, so the message does not repeat it.
fn describe_faulty_field(text: &str, parser: &CronParser) -> String {
    let wrong = text.split_whitespace().zip(FIELDS).enumerate().find(|(at, (field, _))| {
        let mut alone = ["*"; 5];
        alone[*at] = field;
        parser.parse(&alone.join(" ")).is_err()
    });
    match wrong {
        Some((_, (_, (name, range)))) => format!("its {name} must be {range}"),
        None => "its fields do not fit together".to_owned(),
    }
}

static TIME_ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Time zone of the IANA database, such as `Europe/Vienna`.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigTimeZone {
    name: String,
    zone: TimeZone,
}

impl ConfigTimeZone {
    /// Returns the name as spelled in the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn zone(&self) -> &TimeZone {
        &self.zone
    }
}

impl FromStr for ConfigTimeZone {
    type Err = String;
    fn from_str(text: &str) -> Result<ConfigTimeZone, String> {
        match TIME_ZONES.get(text) {
            Ok(zone) => {
                // The database knows the spelling; the lookup ignores case.
                let name = zone.iana_name().unwrap_or(text).to_owned();
                Ok(ConfigTimeZone { name, zone })
            }
            Err(_) => Err(match nearest_zone(text) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "write it as Area/City, for example `Europe/Vienna`, or `UTC`".to_owned(),
            }),
        }
    }
}

fn nearest_zone(text: &str) -> Option<String> {
    let names: Vec<String> = TIME_ZONES.available().map(|name| name.to_string()).collect();
    let city = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    // People know the city, but rarely the area.
    let by_city = names.iter().find(|name| city(name).eq_ignore_ascii_case(&city(text)));
    by_city
        .cloned()
        .or_else(|| did_you_mean(text, names.iter().map(String::as_str)).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_cron(text: &str, expect: &str) {
        let start: Zoned = "2026-03-07T12:00[America/New_York]".parse().unwrap();
        let got = match text.parse::<CronExpr>() {
            Ok(cron) => cron.next_after(&start).unwrap().datetime().to_string(),
            Err(reason) => reason,
        };
        assert_eq!(got, expect, "{text:?}");
    }

    #[test]
    fn five_fields_names_and_shorthands_are_read() {
        check_cron("0 9 * * *", "2026-03-08T09:00:00");
        check_cron("0 9 * * mon-fri", "2026-03-09T09:00:00");
        check_cron("*/15 * * * *", "2026-03-07T12:15:00");
        check_cron("0 0 1 JAN *", "2027-01-01T00:00:00");
        check_cron("0 0 * * 7", "2026-03-08T00:00:00");
        check_cron("0 0 L * *", "2026-03-31T00:00:00");
        check_cron("0 0 29 2 *", "2028-02-29T00:00:00");
        check_cron("@Daily", "2026-03-08T00:00:00");
        check_cron("  @hourly ", "2026-03-07T13:00:00");
    }

    #[test]
    fn a_time_that_daylight_saving_skips_comes_due_after_the_gap() {
        check_cron("30 2 8 3 *", "2026-03-08T03:00:00");
    }

    #[test]
    fn more_expressions_than_are_kept_ready_all_answer() {
        let start: Zoned = "2026-03-07T12:00[UTC]".parse().unwrap();
        let expr =
            |at: usize| -> CronExpr { format!("{} {} * * *", at % 60, at / 60).parse().unwrap() };
        let all: Vec<CronExpr> = (0..PARSED_CACHE_MAX * 2).map(expr).collect();
        for (at, expr) in all.iter().enumerate() {
            let next = expr.next_after(&start).unwrap();
            assert_eq!(usize::from(next.hour().unsigned_abs()) * 60 + next.minute() as usize, at);
        }
        assert!(PARSED_CACHE.lock().unwrap().len() <= PARSED_CACHE_MAX);
    }

    #[test]
    fn what_is_no_cron_expression_is_refused_with_the_reason() {
        check_cron(
            "0 0 9 * * *",
            "it has six fields: remove the seconds, the first field is the minute",
        );
        check_cron("0 9 * *", "it has 4 fields: minute hour day month weekday are needed");
        check_cron("", "it has 0 fields: minute hour day month weekday are needed");
        check_cron(
            "@reboot",
            "there are only @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly",
        );
        check_cron("0 0 30 2 *", "it is never due: no date matches");
        check_cron("61 * * * *", "its minute must be 0-59");
        check_cron("* * * * funday", "its weekday must be 0-7 or SUN-SAT");
        check_cron("*/0 * * * *", "its minute must be 0-59");
    }

    #[test]
    fn zones_are_known_by_name_and_near_misses_are_named() {
        assert_eq!("Europe/Vienna".parse::<ConfigTimeZone>().unwrap().name(), "Europe/Vienna");
        assert_eq!("UTC".parse::<ConfigTimeZone>().unwrap().name(), "UTC");
        assert_eq!(
            "Europe/Viena".parse::<ConfigTimeZone>().unwrap_err(),
            "did you mean `Europe/Vienna`?"
        );
        assert_eq!(
            "Vienna".parse::<ConfigTimeZone>().unwrap_err(),
            "did you mean `Europe/Vienna`?"
        );
        assert_eq!(
            "somewhere".parse::<ConfigTimeZone>().unwrap_err(),
            "write it as Area/City, for example `Europe/Vienna`, or `UTC`"
        );
    }
}
