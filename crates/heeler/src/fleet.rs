//! Loading the fleet's configuration: files and environment in, checked config or faults out.

use std::collections::BTreeMap;
use std::io;

use camino::Utf8Path;
use heeler_model::config::{self, Faults, Loaded, parse_dotenv};

use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Text};
use crate::place::{Place, beside};

/// Loads the fleet's config; on faults prints them all and fails.
pub(crate) fn load(place: &Place) -> Outcome<Loaded> {
    let file = place.config_file()?;
    match try_load(place, file, &|path| std::fs::read_to_string(path))? {
        Ok(loaded) => Ok(loaded),
        Err(faults) => {
            print_faults(place, &faults)?;
            Err(Failure::message(Code::Usage, faults.summary()))
        }
    }
}

/// Loads a config file with its `.env`; the caller decides what to do with faults.
pub(crate) fn try_load(
    place: &Place,
    file: &Utf8Path,
    read: &config::ReadFile<'_>,
) -> Outcome<Result<Loaded, Faults>> {
    let env = with_dotenv(place.env.clone(), &beside(file).join(".env"))?;
    Ok(config::load(file, read, &env))
}

/// Prints faults with their places to stderr.
pub(crate) fn print_faults(place: &Place, faults: &Faults) -> io::Result<()> {
    match faults.is_empty() {
        true => Ok(()),
        false => output::complain(Text::of_faults(faults, &place.here)),
    }
}

/// Adds what `.env` says; variables that are really set win.
fn with_dotenv(
    mut env: BTreeMap<String, String>,
    file: &Utf8Path,
) -> Outcome<BTreeMap<String, String>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(env),
        Err(error) => {
            let error = anyhow::Error::new(error).context(format!("cannot read {file}"));
            return Err(Failure::new(Code::Usage, error));
        }
    };
    let (pairs, faults) = parse_dotenv(&text);
    for fault in faults {
        output::note(&format!("{file}:{}: line skipped: {}", fault.line, fault.reason))?;
    }
    for (name, value) in pairs {
        env.entry(name).or_insert(value);
    }
    Ok(env)
}
