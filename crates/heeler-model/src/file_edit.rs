//! Edits of files, as lines that go, stay and come: from the input of a tool before it ran, or from
//! the patch that Claude reports after it. All surfaces show these lines. Start at [`FileEdit::of`].

use serde_json::Value as Json;

/// Key of the patch in a row or entry of a tool's result.
pub const PATCH_KEY: &str = "patch";

/// Unchanged lines that are kept before and after a change.
const CONTEXT_LINES: usize = 2;

/// Largest product of the two numbers of lines that are compared line by line. Larger edits are shown
/// as all old lines and all new ones.
const COMPARED_MAX: usize = 250_000;

/// Edit of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEdit<'a> {
    /// File as the tool's input names it.
    pub path: &'a str,
    /// Changed places. A file that is written as a whole has one, with added lines only.
    pub hunks: Vec<EditHunk<'a>>,
}

/// Changed place of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditHunk<'a> {
    /// Numbers of the first line before and after the edit; `None` if the place is unknown.
    pub start: Option<(u64, u64)>,
    pub lines: Vec<EditLine<'a>>,
}

impl<'a> EditHunk<'a> {
    /// Returns the lines with their numbers: of a removed line before the edit, of all others after
    /// it.
    pub fn numbered_lines(&self) -> impl Iterator<Item = (Option<u64>, EditLine<'a>)> {
        let mut next = self.start;
        self.lines.iter().map(move |line| {
            let number = next.map(|(old, new)| match line {
                EditLine::Removed(_) => old,
                EditLine::Unchanged(_) | EditLine::Added(_) => new,
            });
            next = next.map(|(old, new)| {
                let is_old = !matches!(line, EditLine::Added(_));
                let is_new = !matches!(line, EditLine::Removed(_));
                // The first number comes from the agent.
                (old.saturating_add(is_old.into()), new.saturating_add(is_new.into()))
            });
            (number, *line)
        })
    }
}

/// Line of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditLine<'a> {
    Unchanged(&'a str),
    Removed(&'a str),
    Added(&'a str),
}

impl<'a> FileEdit<'a> {
    /// Returns the edit in the input of Claude's tools `Edit`, `MultiEdit` and `Write`; `None` for
    /// other tools, and for inputs of another form.
    pub fn of(tool: &str, input: &'a Json) -> Option<FileEdit<'a>> {
        let path = input["file_path"].as_str()?;
        let hunks = match tool {
            "Edit" => vec![edit_hunk(input)?],
            "MultiEdit" => {
                let edits = input["edits"].as_array()?;
                edits.iter().map(edit_hunk).collect::<Option<Vec<_>>>()?
            }
            "Write" => {
                let text = input["content"].as_str()?;
                // Not `lines`, which drops carriage returns.
                let text = text.strip_suffix('\n').unwrap_or(text);
                let lines = text.split('\n').map(EditLine::Added).collect();
                vec![EditHunk { start: None, lines }]
            }
            _ => return None,
        };
        Some(FileEdit { path, hunks })
    }

    /// Returns the edit in a patch of Claude's result: a list of hunks with their first lines and the
    /// lines of a unified diff. `None` if it has another form, or no hunk.
    pub fn of_patch(path: &'a str, patch: &'a Json) -> Option<FileEdit<'a>> {
        let hunks = patch.as_array()?.iter().map(patch_hunk).collect::<Option<Vec<_>>>()?;
        (!hunks.is_empty()).then_some(FileEdit { path, hunks })
    }

    /// Counts added and removed lines.
    pub fn counts(&self) -> (usize, usize) {
        let lines = || self.hunks.iter().flat_map(|hunk| &hunk.lines);
        let added = lines().filter(|line| matches!(line, EditLine::Added(_))).count();
        let removed = lines().filter(|line| matches!(line, EditLine::Removed(_))).count();
        (added, removed)
    }
}

/// Returns one replacement of a tool's input; `None` if it has another form.
pub fn edit_hunk(edit: &Json) -> Option<EditHunk<'_>> {
    let lines = compare(edit["old_string"].as_str()?, edit["new_string"].as_str()?);
    Some(EditHunk { start: None, lines })
}

fn patch_hunk(hunk: &Json) -> Option<EditHunk<'_>> {
    let start = hunk["oldStart"].as_u64().zip(hunk["newStart"].as_u64());
    let mut lines = Vec::new();
    for line in hunk["lines"].as_array()? {
        let line = line.as_str()?;
        lines.push(match line.as_bytes().first() {
            Some(b'+') => EditLine::Added(&line[1..]),
            Some(b'-') => EditLine::Removed(&line[1..]),
            Some(b' ') => EditLine::Unchanged(&line[1..]),
            // "No newline at end of file" is no line of the file.
            Some(b'\\') => continue,
            _ => EditLine::Unchanged(line),
        });
    }
    Some(EditHunk { start, lines })
}

/// Compares two texts. Lines far from any change are left out.
fn compare<'a>(old: &'a str, new: &'a str) -> Vec<EditLine<'a>> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.split('\n').collect(), new.split('\n').collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let ends = old[same..].iter().rev().zip(new[same..].iter().rev());
    let same_end = ends.take_while(|(old, new)| old == new).count();
    let before = &old[same.saturating_sub(CONTEXT_LINES)..same];
    let after = &old[old.len() - same_end..];
    let mut lines: Vec<EditLine<'a>> = before.iter().map(|it| EditLine::Unchanged(it)).collect();
    compare_lines(&old[same..old.len() - same_end], &new[same..new.len() - same_end], &mut lines);
    lines.extend(after.iter().take(CONTEXT_LINES).map(|it| EditLine::Unchanged(it)));
    lines
}

/// Adds the shortest sequence of removed, unchanged and added lines.
fn compare_lines<'a>(old: &[&'a str], new: &[&'a str], lines: &mut Vec<EditLine<'a>>) {
    if old.len().saturating_mul(new.len()) > COMPARED_MAX {
        lines.extend(old.iter().map(|it| EditLine::Removed(it)));
        lines.extend(new.iter().map(|it| EditLine::Added(it)));
        return;
    }
    // Number of common lines of the rests that begin at each pair of lines.
    let width = new.len() + 1;
    let mut common = vec![0_u32; (old.len() + 1) * width];
    for (i, was) in old.iter().enumerate().rev() {
        for (j, is) in new.iter().enumerate().rev() {
            common[i * width + j] = match was == is {
                true => common[(i + 1) * width + j + 1] + 1,
                false => common[(i + 1) * width + j].max(common[i * width + j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < old.len() && j < new.len() {
        if old[i] == new[j] {
            lines.push(EditLine::Unchanged(old[i]));
            (i, j) = (i + 1, j + 1);
        } else if common[(i + 1) * width + j] >= common[i * width + j + 1] {
            lines.push(EditLine::Removed(old[i]));
            i += 1;
        } else {
            lines.push(EditLine::Added(new[j]));
            j += 1;
        }
    }
    lines.extend(old[i..].iter().map(|it| EditLine::Removed(it)));
    lines.extend(new[j..].iter().map(|it| EditLine::Added(it)));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(tool: &str, input: &Json, expected: &str) {
        let edit = FileEdit::of(tool, input).unwrap();
        let text = |line: &EditLine<'_>| match line {
            EditLine::Unchanged(text) => format!(" {text}"),
            EditLine::Removed(text) => format!("-{text}"),
            EditLine::Added(text) => format!("+{text}"),
        };
        let hunks =
            edit.hunks.iter().map(|hunk| hunk.lines.iter().map(text).collect::<Vec<_>>().join("|"));
        assert_eq!(hunks.collect::<Vec<_>>().join(" @ "), expected);
    }

    #[test]
    fn an_edit_is_what_goes_and_what_comes() {
        let edit =
            |old: &str, new: &str| json!({"file_path": "a", "old_string": old, "new_string": new});
        check(
            "Edit",
            &edit("1\n2\n3\nx\n4\n5\n6", "1\n2\n3\ny\nz\n4\n5\n6"),
            " 2| 3|-x|+y|+z| 4| 5",
        );
        check("Edit", &edit("a\nb\nc\nd", "a\nB\nc\nD"), " a|-b|+B| c|-d|+D");
        check("Edit", &edit("", "new"), "-|+new");
        check("Edit", &edit("gone", ""), "-gone|+");
        check("Edit", &edit("same", "same"), " same");
        let edits = [edit("a", "b"), edit("c", "d")];
        check("MultiEdit", &json!({"file_path": "a", "edits": edits}), "-a|+b @ -c|+d");
        check("Write", &json!({"file_path": "a", "content": "x\ny\n"}), "+x|+y");
        let written = json!({"file_path": "a", "content": "x\ny\n"});
        assert_eq!(FileEdit::of("Write", &written).unwrap().counts(), (2, 0));
    }

    #[test]
    fn a_patch_of_claude_has_line_numbers() {
        let patch = json!([
            {"oldStart": 9, "oldLines": 3, "newStart": 9, "newLines": 4, "lines": [" a", "-b", "+B", "+c", " d"]},
            {"oldStart": 40, "newStart": 41, "lines": ["-x", "\\ No newline at end of file", ""]},
        ]);
        let edit = FileEdit::of_patch("a.rs", &patch).unwrap();
        let numbered =
            |hunk: &EditHunk<'_>| hunk.numbered_lines().map(|(at, _)| at.unwrap()).collect();
        let numbers: Vec<Vec<u64>> = edit.hunks.iter().map(numbered).collect();
        assert_eq!(numbers, [vec![9, 10, 10, 11, 12], vec![40, 41]]);
        assert_eq!(edit.counts(), (2, 2));
        // Numbers of another form are left out, lines are not.
        let vague = json!([{"oldStart": -1, "newStart": 1, "lines": ["+a"]}]);
        let edit = FileEdit::of_patch("a", &vague).unwrap();
        assert!(edit.hunks[0].numbered_lines().all(|(at, _)| at.is_none()));
        let last = json!([{"oldStart": u64::MAX, "newStart": u64::MAX, "lines": [" a", " b"]}]);
        assert_eq!(FileEdit::of_patch("a", &last).unwrap().hunks[0].numbered_lines().count(), 2);
        for other in [json!(null), json!([]), json!("x"), json!([{"lines": [1]}]), json!([3])] {
            assert_eq!(FileEdit::of_patch("a", &other), None, "{other}");
        }
    }

    #[test]
    fn what_is_no_edit_is_none() {
        for (tool, input) in [
            ("Bash", json!({"command": "ls"})),
            ("Edit", json!({"file_path": "a", "old_string": "x"})),
            ("Edit", json!({"old_string": "x", "new_string": "y"})),
            ("Edit", json!(null)),
            ("MultiEdit", json!({"file_path": "a", "edits": [{"old_string": 1}]})),
            ("Write", json!({"file_path": "a", "content": 3})),
            ("mcp__x__Edit", json!({"file_path": "a", "old_string": "x", "new_string": "y"})),
        ] {
            assert_eq!(FileEdit::of(tool, &input), None, "{tool}");
        }
    }

    #[test]
    fn a_large_edit_is_not_compared_line_by_line() {
        let old = (0..1000).map(|n| format!("o{n}")).collect::<Vec<_>>().join("\n");
        let new = (0..1000).map(|n| format!("n{n}")).collect::<Vec<_>>().join("\n");
        let input = json!({"file_path": "a", "old_string": old, "new_string": new});
        assert_eq!(FileEdit::of("Edit", &input).unwrap().counts(), (1000, 1000));
    }
}
