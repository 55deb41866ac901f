//! Tests that failed and passed when CI ran them once more. Start at [`check_report`].

use anyhow::{Context as _, Result, bail};

use crate::inside::target_folder;

/// Most unstable tests of a run. More of them point to a fault, not to a busy machine.
const UNSTABLE_TESTS_MAX: usize = 2;

/// Names the unstable tests of the last run; fails if there are too many.
pub(crate) fn check_report() -> Result<()> {
    let report = read_report()?;
    let unstable = unstable_tests(&report);
    for name in &unstable {
        eprintln!("xtask: unstable: {name} failed, then passed. Find its race.");
    }
    if unstable.len() > UNSTABLE_TESTS_MAX {
        bail!("{} tests are unstable, at most {UNSTABLE_TESTS_MAX} may be", unstable.len());
    }
    Ok(())
}

/// Reads nextest's report of the last run.
pub(crate) fn read_report() -> Result<String> {
    let path = target_folder()?.join("nextest/ci/junit.xml");
    std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read the report of the tests, {}", path.display()))
}

/// Returns the names of the tests that passed only at the second attempt.
fn unstable_tests(report: &str) -> Vec<&str> {
    let cases = report.split("<testcase ").skip(1);
    cases
        .filter(|case| case.contains("<flakyFailure") || case.contains("<flakyError"))
        .filter_map(|case| case.split_once("name=\"")?.1.split('"').next())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::unstable_tests;

    #[test]
    fn a_test_that_passed_at_the_second_attempt_is_unstable() {
        let report = r#"<testsuites><testsuite name="it">
            <testcase name="good" classname="it" time="1"></testcase>
            <testcase name="web::racy" classname="it" time="1">
              <flakyFailure type="test failure" time="2"><system-err>x</system-err></flakyFailure>
            </testcase>
            <testcase name="bad" classname="it"><failure/><rerunFailure/></testcase>
            </testsuite></testsuites>"#;
        assert_eq!(unstable_tests(report), ["web::racy"]);
    }
}
