//! Which tests take the most time, from the report of the last run. Start at [`print_slowest`].
//!
//! The suite is kept fast by looking at this list, so `cargo xtask test` ends with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;

use crate::unstable_tests::read_report;

/// Tests and modules that are listed.
const LISTED_MAX: usize = 15;

/// Time of one test in the report.
#[derive(Debug, PartialEq)]
struct TestTime<'r> {
    binary: &'r str,
    name: &'r str,
    seconds: f64,
}

/// Prints the slowest tests of the last run, and the modules whose tests take the most time together.
pub(crate) fn print_slowest() -> Result<()> {
    let report = read_report()?;
    eprint!("{}", slowest_table(&test_times(&report)));
    Ok(())
}

fn slowest_table(times: &[TestTime<'_>]) -> String {
    let mut modules: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    for time in times {
        let module = time.name.split("::").next().unwrap_or(time.name);
        let (seconds, count) = modules.entry(format!("{} {module}", time.binary)).or_default();
        *seconds += time.seconds;
        *count += 1;
    }
    let total: f64 = times.iter().map(|time| time.seconds).sum();
    let mut table = format!("xtask: {} tests took {total:.0} s of threads\n", times.len());
    let mut modules: Vec<_> = modules.into_iter().collect();
    modules.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    for (module, (seconds, count)) in modules.iter().take(LISTED_MAX) {
        let _cannot_fail = writeln!(table, "  {seconds:7.1} s  {module} ({count} tests)");
    }
    let mut slowest: Vec<&TestTime<'_>> = times.iter().collect();
    slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    table.push_str("xtask: the slowest tests\n");
    for time in slowest.iter().take(LISTED_MAX) {
        let (seconds, name) = (time.seconds, time.name);
        let _cannot_fail = writeln!(table, "  {seconds:7.1} s  {} {name}", time.binary);
    }
    table
}

fn test_times(report: &str) -> Vec<TestTime<'_>> {
    let cases = report.split("<testcase ").skip(1);
    cases
        .filter_map(|case| {
            let head = case.split('>').next()?;
            Some(TestTime {
                binary: attribute(head, "classname")?,
                name: attribute(head, "name")?,
                seconds: attribute(head, "time")?.parse().ok()?,
            })
        })
        .collect()
}

fn attribute<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    // A blank before the name, because `classname` ends like `name`.
    let head_after = match head.strip_prefix(&format!("{name}=\"")) {
        Some(value) => value,
        None => head.split_once(&format!(" {name}=\""))?.1,
    };
    head_after.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::{slowest_table, test_times};

    #[test]
    fn tests_are_listed_by_time_alone_and_by_module() {
        let report = r#"<testsuites><testsuite name="it" time="9">
            <testcase name="web::quick" classname="heeler::it" timestamp="x" time="0.250"></testcase>
            <testcase name="web::slow" classname="heeler::it" time="3.5"></testcase>
            <testcase name="tests::one" classname="store" time="1"><failure/></testcase>
            </testsuite></testsuites>"#;
        let table = slowest_table(&test_times(report));
        let lines: Vec<&str> = table.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "xtask: 3 tests took 5 s of threads",
                "3.8 s  heeler::it web (2 tests)",
                "1.0 s  store tests (1 tests)",
                "xtask: the slowest tests",
                "3.5 s  heeler::it web::slow",
                "1.0 s  store tests::one",
                "0.2 s  heeler::it web::quick",
            ]
        );
    }
}
