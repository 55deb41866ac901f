//! The table of the conformance suite in `docs/agents.md`, compared with the scenarios that passed.
//!
//! The tests write a line for each agent and scenario that passed. Start at [`cells_without_a_pass`].

/// Beginning of the table's first line.
const HEADING: &str = "| scenario |";

/// Cell of a scenario that works.
const WORKS: &str = "works";

/// Returns the names of the agents in the table.
pub(crate) fn certified_agents(page: &str) -> Vec<&str> {
    let heading = page.lines().find(|line| line.starts_with(HEADING)).unwrap_or_default();
    // A column is headed by the name and the version.
    cells(heading).into_iter().skip(1).filter_map(|cell| cell.split(' ').next()).collect()
}

/// Returns the cells that say `works` although no test of this report passed for them.
pub(crate) fn cells_without_a_pass(page: &str, report: &str) -> Vec<String> {
    let agents = certified_agents(page);
    let rows = page.lines().skip_while(|line| !line.starts_with(HEADING)).skip(2);
    let mut missing = Vec::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let row = cells(row);
        for (agent, cell) in agents.iter().zip(row.iter().skip(1)) {
            let passed = format!("{agent}\t{}", row[0]);
            if *cell == WORKS && !report.lines().any(|line| line == passed) {
                missing.push(format!("{agent}: {}", row[0]));
            }
        }
    }
    missing
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "text\n\n| scenario | claude 2.1 | codex 0.1 |\n|---|---|---|\n\
        | text | works | works |\n| max turns | works | refused |\n\nmore\n";

    #[test]
    fn a_cell_that_works_needs_a_passing_run() {
        assert_eq!(certified_agents(PAGE), ["claude", "codex"]);
        let passed = "claude\ttext\nclaude\tmax turns\n";
        assert_eq!(cells_without_a_pass(PAGE, passed), ["codex: text"]);
        assert!(cells_without_a_pass(PAGE, &format!("{passed}codex\ttext\n")).is_empty());
    }

    #[test]
    fn the_page_has_the_table() {
        let page = include_str!("../../../docs/agents.md");
        assert!(certified_agents(page).contains(&"codex-acp"));
        assert!(cells_without_a_pass(page, "").len() > 200);
    }
}
