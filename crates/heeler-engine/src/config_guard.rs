//! The guard of the config: what people have put on disk, as opposed to what a run may have changed.
//!
//! The config is *exposed* from the start of a run until no process of an agent is left and the
//! files are what they were. The content at the start of the first run is the *baseline*. While the
//! config is exposed, only the baseline is loaded; anything else waits for a person. Both facts are
//! in the database, so no crash forgets them. Start at [`ConfigGuard`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::JobId;
use heeler_model::config_change::{ConfigContent, ConfigFileContent, HeldConfigChange};
use heeler_model::redact::SecretRedactor;
use heeler_store::{
    CONFIG_BASELINE, CONFIG_EXPOSED_BY, CONFIG_EXPOSED_SINCE, DatabaseError, StateDatabase,
    StoreTransaction,
};

use jiff::{SignedDuration, Timestamp};

use crate::config_files::read_content_again;

/// Number of jobs that are remembered as possible authors of a change. The oldest are forgotten
/// first; the exposure itself is not.
const EXPOSING_JOBS_MAX: usize = 50;

/// Tolerance between the record of a run's start and the clock of its processes.
const START_TOLERANCE: SignedDuration = SignedDuration::from_secs(10);

/// Knowledge of what people have put on disk.
#[derive(Debug, Clone, Default)]
pub struct ConfigGuard {
    /// Content of the files, without secrets, when the config became exposed.
    baseline: Arc<ConfigContent>,
    /// Start of the first run; `None` if the config is not exposed.
    exposed_since: Option<Timestamp>,
    /// Jobs with runs since then.
    jobs: Vec<JobId>,
}

impl ConfigGuard {
    pub fn load(db: &StateDatabase) -> Result<ConfigGuard, DatabaseError> {
        let jobs = db.meta(&db.host_key(CONFIG_EXPOSED_BY))?.filter(|text| !text.is_empty());
        let since = db.meta(&db.host_key(CONFIG_EXPOSED_SINCE))?;
        let baseline = db.meta(&db.host_key(CONFIG_BASELINE))?.unwrap_or_default();
        Ok(ConfigGuard {
            // Damage must not open the way for a change: an empty baseline covers nothing.
            baseline: Arc::new(serde_json::from_str(&baseline).unwrap_or_default()),
            // A time that is unknown counts as the earliest one.
            exposed_since: jobs
                .is_some()
                .then(|| since.and_then(|text| text.parse().ok()).unwrap_or(Timestamp::MIN)),
            jobs: jobs.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        })
    }

    /// Returns true if a run may have changed the config.
    pub fn is_exposed(&self) -> bool {
        self.exposed_since.is_some()
    }

    /// Returns the longest possible age of a process of an agent that may have changed the config.
    pub(crate) fn agent_age_max(&self, now: Timestamp) -> Duration {
        let age = self.exposed_since.map(|since| now.duration_since(since) + START_TOLERANCE);
        // A clock that was set back says nothing about ages.
        age.and_then(|age| Duration::try_from(age).ok()).unwrap_or(Duration::MAX)
    }

    /// Reads the files of the baseline as they are now.
    pub fn read_baseline_again(&self) -> ConfigContent {
        read_content_again(&self.baseline)
    }

    pub(crate) fn baseline(&self) -> &ConfigContent {
        &self.baseline
    }

    /// Lists the files of another fleet's config that runs of this fleet may have changed, and that
    /// are not what they were.
    pub fn changed_files(&self, content: &ConfigContent) -> Vec<Utf8PathBuf> {
        if !self.is_exposed() {
            return Vec::new();
        }
        let known: BTreeMap<Utf8PathBuf, &str> = self
            .baseline
            .files
            .iter()
            .map(|(path, file)| (real_name(path), file.digest.as_str()))
            .collect();
        let is_changed = |(path, file): &(&Utf8PathBuf, &ConfigFileContent)| {
            // A file that was removed is not loaded.
            let is_absent = file.digest == ConfigFileContent::absent(file.kind).digest;
            !is_absent && known.get(&real_name(path)).is_some_and(|known| *known != file.digest)
        };
        content.files.iter().filter(is_changed).map(|(path, _)| path.clone()).collect()
    }

    /// Returns the jobs with runs that may have changed the config.
    pub(crate) fn jobs(&self) -> &[JobId] {
        &self.jobs
    }

    /// Returns the change that waits for a person if `content` must not be loaded.
    pub fn held_change(
        &self,
        content: &ConfigContent,
        redactor: &SecretRedactor,
    ) -> Option<HeldConfigChange> {
        if !self.is_exposed() || self.baseline.covers(content) {
            return None;
        }
        Some(HeldConfigChange {
            fingerprint: content.fingerprint(),
            jobs: self.jobs.clone(),
            files: self.baseline.changes_to(&content.redacted(redactor)),
        })
    }

    /// Records that a run is about to start. `read_disk` returns the content of the files at this
    /// moment; it is called if no agent could have changed them until now.
    pub(crate) fn expose(
        &mut self,
        tx: &mut StoreTransaction<'_>,
        job: &JobId,
        (redactor, now): (&SecretRedactor, Timestamp),
        read_disk: impl FnOnce() -> ConfigContent,
    ) -> Result<(), DatabaseError> {
        if !self.is_exposed() {
            self.set_baseline(tx, read_disk().redacted(redactor))?;
            self.jobs.clear();
            tx.set_meta(&tx.host_key(CONFIG_EXPOSED_SINCE), &now.to_string())?;
            self.exposed_since = Some(now);
        }
        if self.jobs.last() == Some(job) {
            return Ok(());
        }
        self.jobs.retain(|known| known != job);
        self.jobs.push(job.clone());
        let excess = self.jobs.len().saturating_sub(EXPOSING_JOBS_MAX);
        self.jobs.drain(..excess);
        let jobs = serde_json::to_string(&self.jobs).expect("names are JSON");
        tx.set_meta(&tx.host_key(CONFIG_EXPOSED_BY), &jobs)
    }

    /// Records that no process of an agent is left, and that the files are those of people.
    pub(crate) fn end_exposure(
        &mut self,
        tx: &mut StoreTransaction<'_>,
    ) -> Result<(), DatabaseError> {
        (self.exposed_since, self.jobs) = (None, Vec::new());
        tx.set_meta(&tx.host_key(CONFIG_EXPOSED_BY), "")
    }

    /// Records that a person has confirmed a content. What is known of other files stays: a second
    /// config may use the same state.
    pub fn accept(
        &mut self,
        tx: &mut StoreTransaction<'_>,
        content: &ConfigContent,
        redactor: &SecretRedactor,
    ) -> Result<(), DatabaseError> {
        let mut merged = (*self.baseline).clone();
        merged.files.extend(content.redacted(redactor).files);
        self.set_baseline(tx, merged)
    }

    fn set_baseline(
        &mut self,
        tx: &mut StoreTransaction<'_>,
        content: ConfigContent,
    ) -> Result<(), DatabaseError> {
        // Most runs find what the last one found, and the text is much larger than the other rows.
        if self.baseline.is_same(&content) {
            return Ok(());
        }
        let text = serde_json::to_string(&content).expect("texts are JSON");
        tx.set_meta(&tx.host_key(CONFIG_BASELINE), &text)?;
        self.baseline = Arc::new(content);
        Ok(())
    }
}

/// Resolves the links in the path of a file's folder: two fleets may name it in different ways.
fn real_name(path: &Utf8Path) -> Utf8PathBuf {
    let folder = path.parent().and_then(|folder| folder.canonicalize_utf8().ok());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use heeler_model::config_change::ConfigFileKind;
    use heeler_store::{Store, StoreReader, StoreWriteError};

    use super::*;
    use crate::tests::EngineFixture;

    fn content(text: &str) -> ConfigContent {
        let file = ConfigFileContent::of_bytes(ConfigFileKind::Text, text.as_bytes());
        ConfigContent { files: [("/fleet/heeler.yaml".into(), file)].into() }
    }

    fn held(guard: &ConfigGuard, text: &str) -> Option<HeldConfigChange> {
        guard.held_change(&content(text), &SecretRedactor::new(&[]))
    }

    fn guard(place: &EngineFixture) -> ConfigGuard {
        ConfigGuard::load(&StoreReader::open(&place.fleet.dir).unwrap()).unwrap()
    }

    fn write(
        store: &Store,
        change: impl FnOnce(&mut StoreTransaction<'_>) -> Result<(), DatabaseError> + Send + 'static,
    ) {
        let written: Result<(), StoreWriteError<DatabaseError>> = store.write(change);
        written.unwrap();
    }

    fn expose(store: &Store, number: u64, text: &'static str) {
        let job = JobId::mint(jiff::Timestamp::UNIX_EPOCH, number);
        write(store, move |tx| {
            let mut guard = ConfigGuard::load(tx)?;
            let now = jiff::Timestamp::UNIX_EPOCH;
            guard.expose(tx, &job, (&SecretRedactor::new(&[]), now), || content(text))
        });
    }

    #[test]
    fn the_first_run_decides_what_is_loaded_until_a_person_does() {
        let place = EngineFixture::new("success");
        let store = place.fleet.open_writer("test", Duration::ZERO).unwrap();
        assert_eq!(held(&guard(&place), "any"), None, "no run was alive");
        for number in 0..60 {
            expose(&store, number, if number == 0 { "of a person" } else { "of an agent" });
        }
        assert_eq!(held(&guard(&place), "of a person"), None);
        let change = held(&guard(&place), "of an agent").unwrap();
        assert_eq!(change.jobs.len(), EXPOSING_JOBS_MAX);
        assert_eq!(change.files[0].lines, ["- of a person", "+ of an agent"]);
        write(&store, |tx| {
            let redactor = SecretRedactor::new(&[]);
            ConfigGuard::load(tx)?.accept(tx, &content("of an agent"), &redactor)
        });
        assert_eq!(held(&guard(&place), "of an agent"), None);
        assert!(held(&guard(&place), "of a person").is_some(), "it is not on disk any more");
        write(&store, |tx| ConfigGuard::load(tx)?.end_exposure(tx));
        assert_eq!(held(&guard(&place), "any"), None);
    }

    #[test]
    fn a_damaged_record_opens_no_way() {
        let place = EngineFixture::new("success");
        let store = place.fleet.open_writer("test", Duration::ZERO).unwrap();
        expose(&store, 1, "of a person");
        write(&store, |tx| tx.set_meta(CONFIG_BASELINE, "{"));
        write(&store, |tx| tx.set_meta(CONFIG_EXPOSED_BY, "{"));
        assert!(guard(&place).is_exposed());
        assert!(held(&guard(&place), "of a person").is_some());
    }
}
