//! References of phases and templates to phases, outputs and inputs.
//!
//! A reference to an unknown name is a fault at its position, and so is a dependency cycle. Start
//! at [`WorkflowLoader::check_references`].

use std::collections::{BTreeMap, HashMap};

use indexmap::IndexMap;

use super::definition::WorkflowInput;
use super::keys::{PhaseKeys, PhaseListKeys};
use super::parse::WorkflowLoader;
use super::template_scope::{NAMESPACES, ValuePath};
use crate::reader::SourceSpan;
use crate::text::did_you_mean;
use crate::value::{ConfigValue as _, SpannedValue};
use crate::yaml::{YamlKind, YamlNode};

/// Names that templates see in addition to the run's, each in certain places.
const BUILTIN_NAMES: [&str; 15] = [
    "approvalId",
    "approvalUrl",
    "cycle",
    "error",
    "fixCycle",
    "index",
    "item",
    "iteration",
    "maxCycles",
    "maxIterations",
    "output",
    "phase",
    "previousOutput",
    "review",
    "run",
];

/// Names that Last Light's triggers provide.
const LAST_LIGHT_NAMES: [&str; 11] = [
    "artifactsUrl",
    "branch",
    "issueLabels",
    "issueTitle",
    "labels",
    "notesFile",
    "owner",
    "priorNotes",
    "repo",
    "title",
    "verifyScript",
];

/// Key of `scratch` with the markers of Last Light's fixes.
const FIX_MARKERS: &str = "fixMarkers";

/// Markers that Heeler stores there.
const STORED_MARKERS: [&str; 2] = ["diagnosis", "fix"];

/// References of a template or an expression.
pub(super) struct TemplateReferences {
    at: SourceSpan,
    paths: Vec<ValuePath>,
    /// Phase that it belongs to.
    phase: Option<usize>,
    /// Name that is only visible here.
    local_name: Option<String>,
}

/// Names that a workflow defines.
#[derive(Clone, Copy)]
pub(super) struct WorkflowNames<'n> {
    pub(super) phases: &'n [PhaseKeys],
    /// Dependencies of each phase.
    pub(super) dependencies: &'n [Vec<usize>],
    pub(super) inputs: &'n IndexMap<String, WorkflowInput>,
    /// Names of phases with errors, and of their outputs.
    pub(super) unreadable: &'n [String],
}

impl TemplateReferences {
    pub(super) fn new(
        at: SourceSpan,
        paths: Vec<ValuePath>,
        phase: Option<usize>,
    ) -> TemplateReferences {
        TemplateReferences { at, paths, phase, local_name: None }
    }

    /// Adds a name that is only visible here.
    pub(super) fn with_local_name(self, own: Option<String>) -> TemplateReferences {
        TemplateReferences { local_name: own, ..self }
    }
}

impl WorkflowLoader<'_> {
    /// Returns the dependencies of each phase, as indexes. If no phase has `depends_on`, each
    /// depends on the one before it.
    pub(super) fn resolve_dependencies(
        &mut self,
        phases: &[PhaseKeys],
        lost: &[String],
    ) -> Vec<Vec<usize>> {
        // A file without dependencies is a simple list of steps.
        if phases.iter().all(|phase| phase.depends_on.is_none()) {
            let before = |place: usize| place.checked_sub(1).into_iter().collect();
            return (0..phases.len()).map(before).collect();
        }
        let places: HashMap<&str, usize> =
            phases.iter().enumerate().map(|(place, it)| (it.name.value.as_str(), place)).collect();
        let mut all = Vec::new();
        for phase in phases {
            let mut found: Vec<usize> = Vec::new();
            for name in phase.depends_on.iter().flat_map(|list| &list.0) {
                match places.get(name.value.as_str()) {
                    // A name given twice counts once, or the phase would wait for two ends.
                    Some(place) if found.contains(place) => {}
                    Some(place) => found.push(*place),
                    // The phase exists but has a fault; reporting it as unknown would mislead.
                    None if lost.iter().any(|it| it == name.value.as_str()) => {}
                    None => {
                        self.report_unknown_phase(
                            name.at,
                            name.value.as_str(),
                            places.keys().copied(),
                        );
                    }
                }
            }
            all.push(found);
        }
        // After the names, because unknown ones are not part of any cycle.
        self.reject_cycle(phases, &all);
        all
    }

    /// Returns the names and output names of phases that could not be read. Also checks the agents
    /// that they name.
    pub(super) fn unreadable_phase_names(
        &mut self,
        tree: &YamlNode,
        read: &PhaseListKeys,
    ) -> Vec<String> {
        let items = match tree.get("phases").map(|list| &list.kind) {
            Some(YamlKind::List(items)) => items.as_slice(),
            _ => &[],
        };
        let is_lost = |item: &&YamlNode| !read.0.iter().any(|phase| phase.at == item.at);
        let lost: Vec<&YamlNode> = items.iter().filter(is_lost).collect();
        for agent in lost.iter().filter_map(|item| item.get("agent")) {
            // Faults of the text itself are already reported, and duplicates are dropped.
            if let Some(agent) = SpannedValue::read(agent, &mut self.reader) {
                self.resolve_agent(&agent);
            }
        }
        let names = lost.iter().flat_map(|item| [item.get("name"), item.get("output_var")]);
        let names = names.flatten().filter_map(|name| match &name.kind {
            YamlKind::Scalar(scalar) => Some(scalar.text.clone()),
            _ => None,
        });
        names.collect()
    }

    fn report_unknown_phase<'n>(
        &mut self,
        at: SourceSpan,
        name: &str,
        known: impl Iterator<Item = &'n str>,
    ) {
        let near = did_you_mean(name, known);
        let fault = self.reader.error(at, format!("there is no phase `{name}`"));
        fault.expected("expected the name of a phase");
        if let Some(near) = near {
            fault.help(format!("did you mean `{near}`?"));
        }
    }

    fn reject_cycle(&mut self, phases: &[PhaseKeys], waits: &[Vec<usize>]) {
        let Some(circle) = find_cycle(waits) else { return };
        let name = |place: &usize| phases[*place].name.value.as_str();
        let message = match circle[..] {
            [one, _] => format!("the phase `{}` depends on itself", name(&one)),
            _ => {
                let names: Vec<&str> = circle.iter().map(name).collect();
                format!("phases depend on each other in a cycle: {}", names.join(" -> "))
            }
        };
        let first = &phases[circle[0]];
        let written = first.depends_on.iter().flat_map(|list| &list.0);
        // Shown at the written name, if there is one.
        let at = written.clone().find(|it| it.value.as_str() == name(&circle[1]));
        let at = at.map_or(first.name.at, |it| it.at);
        self.reader.error(at, message).expected("remove one of these dependencies");
    }

    /// Checks that all references of templates and expressions exist.
    pub(super) fn check_references(&mut self, names: &WorkflowNames<'_>) {
        let mut outputs: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (place, phase) in names.phases.iter().enumerate() {
            let own = [Some(&phase.name), phase.output_var.as_ref()];
            for name in own.into_iter().flatten() {
                outputs.entry(name.value.as_str()).or_default().push(place);
            }
        }
        for phase in names.phases {
            let own = [Some(&phase.name), phase.output_var.as_ref()];
            for name in own.into_iter().flatten() {
                if names.inputs.contains_key(name.value.as_str()) {
                    let message = format!("`{}` is also the name of an input", name.value);
                    self.reader.error(name.at, message).expected("expected another name");
                }
            }
        }
        let mut doubts: Vec<(SourceSpan, String)> = Vec::new();
        // Taken, because the checks below need the reader mutably.
        for used in std::mem::take(&mut self.references) {
            for path in &used.paths {
                if let Some(doubt) = self.check_path(&used, path, names, &outputs) {
                    doubts.push((used.at, doubt.to_owned()));
                }
            }
        }
        // Without declared inputs an unknown name is only suspicious: other faults may explain it.
        let is_told = !names.inputs.is_empty() || self.reader.error_count() == 0;
        if names.unreadable.is_empty() && is_told {
            doubts
                .iter()
                .for_each(|(at, name)| self.report_unknown_name(*at, name, names, &outputs));
        }
    }

    /// Checks one path. Returns its first name if the workflow does not define it.
    fn check_path<'p>(
        &mut self,
        used: &TemplateReferences,
        path: &'p [String],
        names: &WorkflowNames<'_>,
        outputs: &BTreeMap<&str, Vec<usize>>,
    ) -> Option<&'p str> {
        let inputs = names.inputs;
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        match parts[..] {
            [head, ..] if used.local_name.as_deref() == Some(head) => {}
            ["outputs" | "phaseOutputs", name, ..] => self.check_output(used, name, names, outputs),
            ["inputs" | "context", name, ..]
                if !inputs.is_empty() && !inputs.contains_key(name) =>
            {
                let near = did_you_mean(name, inputs.keys().map(String::as_str));
                let at = self.locate_word(used.at, name);
                let fault = self.reader.error(at, format!("there is no input `{name}`"));
                fault.expected("expected the name of an input");
                if let Some(near) = near {
                    fault.help(format!("did you mean `{near}`?"));
                }
            }
            // Last Light's host fills further keys, from files of the checkout.
            ["scratch", FIX_MARKERS, key, ..]
                if !STORED_MARKERS.contains(&key) && !self.context.is_frozen =>
            {
                let at = self.locate_word(used.at, key);
                let message = format!("Heeler does not fill `scratch.{FIX_MARKERS}.{key}`");
                let fault = self.reader.error(at, message);
                fault.expected("expected `diagnosis` or `fix`");
                fault.help("read the file in a phase of type `bash`, and use its output");
            }
            [head, ..] if NAMESPACES.contains(&head) || inputs.contains_key(head) => {}
            [head, ..] if outputs.contains_key(head) => {
                self.check_output(used, head, names, outputs);
            }
            [head, ..] if BUILTIN_NAMES.contains(&head) => {}
            // Without declared inputs Last Light's triggers provide these.
            [head, ..] if inputs.is_empty() && LAST_LIGHT_NAMES.contains(&head) => {}
            [head, "output"] => self.check_output(used, head, names, outputs),
            _ => return path.first().map(String::as_str),
        }
        None
    }

    fn check_output(
        &mut self,
        used: &TemplateReferences,
        name: &str,
        names: &WorkflowNames<'_>,
        outputs: &BTreeMap<&str, Vec<usize>>,
    ) {
        if names.unreadable.iter().any(|it| it == name) {
            return;
        }
        let at = self.locate_word(used.at, name);
        let Some(places) = outputs.get(name) else {
            // A hyphen in an expression is a minus, so only the first part of the name is seen.
            let whole = outputs
                .keys()
                .find(|known| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')));
            let Some(whole) = whole else {
                return self.report_unknown_phase(at, name, outputs.keys().copied());
            };
            let fault = self.reader.error(at, format!("there is no phase `{name}`"));
            let help = format!("write `outputs[\"{whole}\"]`: a hyphen is a minus here");
            fault.expected("expected the name of a phase").help(help);
            return;
        };
        let Some(phase) = used.phase else { return };
        let is_whole = names.unreadable.is_empty();
        // With unreadable phases the dependencies are incomplete, and the warning may be false.
        if is_whole
            && !places
                .iter()
                .any(|place| *place == phase || depends_on(names.dependencies, phase, *place))
        {
            let user = &names.phases[phase].name.value;
            let message =
                format!("`{user}` does not depend on `{name}`, so its output may be missing");
            let help = format!("add it to `depends_on` of `{user}`, or of one of its dependencies");
            self.reader.warn(at, message).expected("empty until that phase has ended").help(help);
        }
    }

    /// Reports an unknown name. It is an error if inputs are declared; otherwise the caller of a
    /// run may still provide it.
    fn report_unknown_name(
        &mut self,
        at: SourceSpan,
        name: &str,
        names: &WorkflowNames<'_>,
        outputs: &BTreeMap<&str, Vec<usize>>,
    ) {
        let inputs = names.inputs.keys().map(String::as_str);
        let known = inputs.chain(outputs.keys().copied()).chain(BUILTIN_NAMES).chain(NAMESPACES);
        let near = did_you_mean(name, known);
        let (is_open, at) = (names.inputs.is_empty(), self.locate_word(at, name));
        let message = format!("unknown name `{name}`");
        let fault = match (is_open, near) {
            // Any name may be given to the run, so only probable typos are worth a warning.
            (true, None) => return,
            // A frozen workflow ran with this name before, and must not fail now.
            (false, _) if !self.context.is_frozen => {
                let fault = self.reader.error(at, message);
                fault.expected("expected an input, a phase or its `output_var`")
            }
            _ => {
                let fault = self.reader.warn(at, message);
                fault.expected("empty unless the run is given such an input")
            }
        };
        if let Some(near) = near {
            fault.help(format!("did you mean `{near}`?"));
        }
    }

    /// Returns the position of a word within a text.
    fn locate_word(&self, at: SourceSpan, word: &str) -> SourceSpan {
        let source = self.reader.source(at.file);
        let Some(text) = source.text.get(at.start..at.end) else { return at };
        let found = |hyphen: bool, in_braces: bool| {
            let is_inner = |c: char| c.is_alphanumeric() || c == '_' || hyphen && c == '-';
            text.match_indices(word).find(|(start, _)| {
                let (before, after) = (&text[..*start], &text[start + word.len()..]);
                // A longer word that contains the name is another name.
                let is_word = !before.ends_with(is_inner) && !after.starts_with(is_inner);
                is_word && (!in_braces || before.rfind('{') > before.rfind('}'))
            })
        };
        // In Last Light's syntax a hyphen is part of a name. The word may also be outside braces.
        let tries = [(true, true), (false, true), (true, false), (false, false)];
        let found = tries.into_iter().find_map(|(hyphen, in_braces)| found(hyphen, in_braces));
        match found {
            Some((start, _)) => {
                let start = at.start + start;
                SourceSpan { file: at.file, start, end: start + word.len() }
            }
            None => at,
        }
    }
}

/// Returns true if a phase depends on another, directly or indirectly.
fn depends_on(waits: &[Vec<usize>], phase: usize, other: usize) -> bool {
    // Marked when they are found, so the walk is linear in wide graphs.
    let mut seen = vec![false; waits.len()];
    let mut open = vec![phase];
    while let Some(place) = open.pop() {
        for wait in &waits[place] {
            if *wait == other {
                return true;
            }
            if !std::mem::replace(&mut seen[*wait], true) {
                open.push(*wait);
            }
        }
    }
    false
}

/// Returns a dependency cycle, with its first phase repeated at the end.
fn find_cycle(waits: &[Vec<usize>]) -> Option<Vec<usize>> {
    // Remove phases without remaining dependencies. The rest is in a cycle, or depends on one.
    let mut left: Vec<usize> = waits.iter().map(Vec::len).collect();
    let mut waiters: Vec<Vec<usize>> = vec![Vec::new(); waits.len()];
    for (place, list) in waits.iter().enumerate() {
        list.iter().for_each(|wait| waiters[*wait].push(place));
    }
    let mut free: Vec<usize> = (0..waits.len()).filter(|place| left[*place] == 0).collect();
    while let Some(place) = free.pop() {
        for waiter in &waiters[place] {
            left[*waiter] -= 1;
            if left[*waiter] == 0 {
                free.push(*waiter);
            }
        }
    }
    let mut at = (0..waits.len()).find(|place| left[*place] > 0)?;
    let mut way: Vec<usize> = Vec::new();
    while !way.contains(&at) {
        way.push(at);
        // Each phase that is left waits for another one that is left, so the walk never ends early.
        at = *waits[at].iter().find(|wait| left[**wait] > 0)?;
    }
    let start = way.iter().position(|place| *place == at)?;
    way.drain(..start);
    way.push(at);
    Some(way)
}
