//! Readers that stay open between queries. Start at [`ReaderPool::reader`].

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::db::DatabaseOpenError;
use crate::layout::StateDir;
use crate::reader::StoreReader;

/// Readers of one state directory. Opening one parses the whole schema, which takes longer than most
/// queries.
#[derive(Debug)]
pub struct ReaderPool {
    dir: StateDir,
    /// Number of idle readers that are kept open; each keeps pages in memory.
    idle_max: usize,
    idle: Mutex<Vec<StoreReader>>,
}

/// Reader that returns to its pool when dropped.
#[derive(Debug)]
pub struct PooledReader<'p> {
    reader: Option<StoreReader>,
    pool: &'p ReaderPool,
}

impl ReaderPool {
    /// Creates a pool without readers.
    pub fn new(dir: StateDir, idle_max: usize) -> ReaderPool {
        ReaderPool { dir, idle_max, idle: Mutex::default() }
    }

    /// Returns a reader for one task: an idle one, or a new one.
    pub fn reader(&self) -> Result<PooledReader<'_>, DatabaseOpenError> {
        let idle = self.lock().pop();
        let reader = match idle {
            // Another file may have replaced the database since: it was written back or rebuilt.
            Some(reader) if reader.is_current() => reader,
            Some(_) => {
                self.close_idle();
                StoreReader::open(&self.dir)?
            }
            None => StoreReader::open(&self.dir)?,
        };
        Ok(PooledReader { reader: Some(reader), pool: self })
    }

    /// Adds a reader that is already open.
    pub fn add(&self, reader: StoreReader) {
        let mut idle = self.lock();
        // More readers are only needed for a moment, so they are closed.
        if idle.len() < self.idle_max {
            idle.push(reader);
        }
    }

    /// Closes all idle readers.
    pub(crate) fn close_idle(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<StoreReader>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for PooledReader<'_> {
    type Target = StoreReader;

    fn deref(&self) -> &StoreReader {
        self.reader.as_ref().expect("it is only taken when dropped")
    }
}

impl Drop for PooledReader<'_> {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            self.pool.add(reader);
        }
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;
    use jiff::Timestamp;

    use super::*;
    use crate::store::Store;

    #[test]
    fn a_pool_keeps_no_more_readers_than_it_may_and_none_of_a_replaced_database() {
        let temp = tempfile::tempdir().unwrap();
        let dir = StateDir::create(Utf8Path::from_path(temp.path()).unwrap()).unwrap();
        let open = || Store::open(&dir, "test", Timestamp::UNIX_EPOCH).unwrap().store;
        drop(open());
        let pool = ReaderPool::new(dir.clone(), 2);
        let readers: Vec<_> = (0..3).map(|_| pool.reader().unwrap()).collect();
        drop(readers);
        assert_eq!(pool.lock().len(), 2);
        drop(pool.reader().unwrap());
        assert_eq!(pool.lock().len(), 2, "an idle one was used");

        let aside = temp.path().join("aside");
        std::fs::rename(dir.database(), aside).unwrap();
        drop(open());
        let reader = pool.reader().unwrap();
        assert!(reader.is_current(), "it reads the file that has the name");
        assert_eq!(pool.lock().len(), 0, "the others read the replaced file");
    }
}
