//! `heeler import`: imports the state of other systems. Never changes the source. Start at [`run`].

use camino::Utf8PathBuf;
use clap::{Args, ValueEnum, ValueHint};
use heeler_import::{ImportError, ImportReport};
use heeler_store::Store;
use serde_json::{Value, json};

use crate::adopt;
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable, ProgressIndicator, SafeText};
use crate::process_env;

/// Refusals that are printed; `--json` has them all.
const REFUSALS_SHOWN_MAX: usize = 50;

/// Arguments of `import`.
#[derive(Args)]
#[command(after_help = "Importing twice is safe: existing entries are counted and left unchanged.")]
pub(crate) struct ImportArgs {
    /// System to import from
    system: ImportSystemArg,
    /// Its project folder, state directory or database
    #[arg(value_hint = ValueHint::AnyPath)]
    path: Utf8PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ImportSystemArg {
    /// A herdctl project or its .herdctl directory
    Herdctl,
    /// Last Light's STATE_DIR or its lastlight.db
    Lastlight,
    /// ~/.fleet/sessions of agents-fleet
    AgentsFleet,
}

/// Runs `import`.
pub(crate) fn run(global: &GlobalArgs, args: &ImportArgs) -> CommandResult {
    let now = process_env::now();
    let context = CommandContext::find(global)?;
    // The target may be herdctl's own directory, whose state must not be shadowed.
    adopt::adopt_if_foreign(&context)?;
    let store = context.store("import", now)?;
    let progress = ProgressIndicator::spinner("importing", context.quiet || args.json);
    let result = import(&store, args, &context)?;
    // Publish even after a failed import: the records before the failure are committed.
    let published = store.publish_views(now);
    progress.end();
    // Every error is mapped after the progress display is gone, so that it is not overdrawn.
    let report = result.map_err(|error| match error {
        ImportError::Open { .. }
        | ImportError::NotAFolder { .. }
        | ImportError::NotFound { .. }
        | ImportError::SourceIsTarget { .. } => CommandFailure::new(FailureCode::Usage, error),
        ImportError::InUse { .. } => CommandFailure::new(FailureCode::Refused, error),
        other => CommandFailure::new(FailureCode::Failed, other),
    })?;
    published.map_err(anyhow::Error::from)?;
    store.backup_daily(now).map_err(anyhow::Error::from)?;
    match args.json {
        true => Ok(output::print_json(&to_json(&report))?),
        false => print(args, &report),
    }
}

fn import(
    store: &Store,
    args: &ImportArgs,
    context: &CommandContext,
) -> CommandResult<Result<ImportReport, ImportError>> {
    let now = process_env::now();
    Ok(match args.system {
        ImportSystemArg::Herdctl => heeler_import::import_herdctl(store, &args.path, now),
        ImportSystemArg::Lastlight => heeler_import::import_lastlight(store, &args.path, now),
        ImportSystemArg::AgentsFleet => {
            let home = context.home.as_deref().ok_or_else(|| {
                CommandFailure::message(FailureCode::Usage, "neither HEELER_HOME nor HOME is set")
            })?;
            heeler_import::import_agents_fleet(store, home, &args.path, now)
        }
    })
}

fn print(args: &ImportArgs, report: &ImportReport) -> CommandResult {
    if report.by_kind.is_empty() {
        output::print_line(format!("{} holds nothing to import", args.path))?;
    } else {
        let mut lines = OutputTable::new(&["", "READ", "IMPORTED", "EXISTING", "REFUSED"], &[]);
        for (kind, tally) in &report.by_kind {
            let numbers = [tally.read, tally.imported, tally.existing, tally.refused];
            let mut cells: Vec<SafeText> = vec![kind.plural().into()];
            cells.extend(numbers.map(|number| output::group_thousands(number).into()));
            lines.push(cells);
        }
        lines.print()?;
    }
    for note in &report.notes {
        output::print_line(format!("note: {}", output::one_line(note)))?;
    }
    for refusal in report.refused.iter().take(REFUSALS_SHOWN_MAX) {
        let (what, reason) = (output::one_line(&refusal.what), output::one_line(&refusal.reason));
        output::print_line(format!("refused: {what}: {reason}"))?;
    }
    let more = report.refused.len().saturating_sub(REFUSALS_SHOWN_MAX);
    if more > 0 {
        output::print_line(format!("and {more} more refused; --json lists them all"))?;
    }
    Ok(())
}

/// Returns an import report as JSON.
pub(crate) fn to_json(report: &ImportReport) -> Value {
    let total = report.total();
    let by_kind: serde_json::Map<String, Value> = report
        .by_kind
        .iter()
        .map(|(kind, tally)| {
            let numbers = json!({
                "read": tally.read, "imported": tally.imported,
                "alreadyThere": tally.existing, "refused": tally.refused,
            });
            (kind.plural().to_owned(), numbers)
        })
        .collect();
    let refused: Vec<Value> = report
        .refused
        .iter()
        .map(|refusal| {
            json!({ "kind": refusal.kind.plural(), "what": refusal.what, "reason": refusal.reason })
        })
        .collect();
    json!({
        "read": total.read, "imported": total.imported, "alreadyThere": total.existing,
        "refusedCount": total.refused, "byKind": by_kind, "refused": refused, "notes": report.notes,
    })
}
