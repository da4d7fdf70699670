//! Keeps checkpoints in files in memory (`memfd_create`).
//!
//! A file has no path, and disappears with its last descriptor. The agent never maps it: the kernel's OOM killer counts
//! mapped pages, and would end the agent first.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::FileExt},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    libc::off_t,
    sys::resource::{Resource, getrlimit},
};
use ragent_base::sys::unix;
use ragent_core::memory::{Buffer, Sum};
use twox_hash::xxhash3_128::Hasher;

use super::limits;

/// The buffers of this agent, by their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers(Arc<Mutex<HashMap<u64, Arc<MemoryFile>>>>);

impl Buffers {
    /// Returns the file of a buffer. It is made at its first use.
    pub(super) fn get(&self, buffer: Buffer) -> Arc<MemoryFile> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || Arc::new(MemoryFile::new(buffer));
        Arc::clone(files.entry(buffer.id).or_insert_with(make))
    }

    /// Removes a buffer. Its memory is free once the returned value and all its other users are dropped, which takes a
    /// while for a large one.
    pub(super) fn remove(&self, buffer: Buffer) -> Option<Arc<MemoryFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&buffer.id)
    }
}

/// The file of one buffer. All methods block.
#[derive(Debug)]
pub(super) struct MemoryFile {
    buffer: Buffer,
    file: OnceLock<Result<File, String>>,
    pages: OnceLock<Result<(), String>>,
    /// What was read at the last checksum. A range is compared with it.
    summed: Mutex<Arc<Summed>>,
}

/// The checksums of the blocks of a content. Each block has [`limits::SUMMED_BLOCK`] bytes, and the last one may be shorter.
#[derive(Debug, Default)]
struct Summed {
    bytes: u64,
    blocks: Vec<Sum>,
}

impl MemoryFile {
    fn new(buffer: Buffer) -> Self {
        let (file, pages) = (OnceLock::new(), OnceLock::new());
        Self { buffer, file, pages, summed: Mutex::default() }
    }

    /// Returns the file, and makes it if it does not exist. Its pages are made when bytes are written.
    ///
    /// # Errors
    ///
    /// Returns the system's error, for people.
    pub(super) fn open(&self) -> Result<&File, String> {
        let make = || make(self.buffer.size).map_err(|error| error.to_string());
        self.file.get_or_init(make).as_ref().map_err(Clone::clone)
    }

    /// Returns the file, which has content. It is not made, because an empty one would be taken for that content.
    ///
    /// # Errors
    ///
    /// Returns the reason, for people, if there is none.
    pub(super) fn with_content(&self) -> Result<&File, String> {
        match self.file.get() {
            Some(file) => file.as_ref().map_err(Clone::clone),
            None => Err("the buffer has no content".to_owned()),
        }
    }

    /// Returns the file with all its pages, so that a worker copies to it as fast as it can.
    ///
    /// # Errors
    ///
    /// Returns the system's error, for people.
    pub(super) fn with_pages(&self) -> Result<&File, String> {
        let file = self.open()?;
        let make = || make_pages(file, self.buffer.size).map_err(|error| error.to_string());
        self.pages.get_or_init(make).clone()?;
        Ok(file)
    }

    /// Frees the memory at once. Workers may map the file until they end, and then read zeros.
    pub(super) fn give_back(&self) {
        if let Ok(file) = self.with_content()
            && let Ok(size) = self.buffer.size.try_into()
        {
            let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            // Otherwise, the memory is free when nothing maps the file any more.
            let _ = fallocate(file, how, 0, size);
        }
    }

    /// Returns a descriptor that cannot write, as a guard against mistakes of a worker.
    ///
    /// # Errors
    ///
    /// Returns the system's error, for people.
    pub(super) fn read_only(&self) -> Result<File, String> {
        read_only(self.with_content()?)
    }

    /// Computes the checksum of the first `bytes` bytes. Stops early if `is_stopped` returns true.
    ///
    /// # Errors
    ///
    /// Returns the system's error, for people.
    pub(super) fn sum(&self, bytes: u64, is_stopped: impl Fn() -> bool) -> Result<Sum, String> {
        let file = self.with_content()?;
        let (mut sums, mut piece) = (Sums::new(), vec![0; limits::PIECE]);
        let mut summed = Summed { bytes, blocks: Vec::new() };
        let mut at = 0;
        while at < bytes {
            if is_stopped() {
                return Err("the agent ends".to_owned());
            }
            let piece = &mut piece[..piece_len(bytes - at)];
            file.read_exact_at(piece, at).map_err(|error| error.to_string())?;
            sums.add(piece);
            summed.blocks.extend(piece.chunks(limits::SUMMED_BLOCK).map(sum_of));
            at += piece.len() as u64;
        }
        *self.summed.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(summed);
        Ok(sums.finish())
    }

    /// Reads the bytes from `at` to the end of their block of [`limits::SUMMED_BLOCK`] bytes, or to `end`. Returns them,
    /// and true if the block is as it was at the last checksum.
    ///
    /// # Errors
    ///
    /// Returns the system's error, for people.
    pub(super) fn read_checked<'block>(
        &self,
        at: u64,
        end: u64,
        block: &'block mut Vec<u8>,
    ) -> Result<(&'block [u8], bool), String> {
        let summed = Arc::clone(&self.summed.lock().unwrap_or_else(PoisonError::into_inner));
        let size = limits::SUMMED_BLOCK as u64;
        let begin = at - at % size;
        block.resize((begin + size).min(summed.bytes).saturating_sub(begin) as usize, 0);
        let read = self.with_content()?.read_exact_at(block, begin);
        read.map_err(|error| error.to_string())?;
        let number = usize::try_from(begin / size).unwrap_or(usize::MAX);
        let is_same = summed.blocks.get(number) == Some(&sum_of(block));
        let wanted = (at - begin) as usize..block.len().min((end - begin) as usize);
        let wanted = block.get(wanted).filter(|wanted| !wanted.is_empty());
        Ok((wanted.ok_or("the buffer has no such bytes")?, is_same))
    }
}

fn sum_of(bytes: &[u8]) -> Sum {
    Sum(Hasher::oneshot(bytes))
}

/// Returns the length of the next piece if `left` bytes are left.
pub(super) fn piece_len(left: u64) -> usize {
    usize::try_from(left).map_or(limits::PIECE, |left| left.min(limits::PIECE))
}

/// Computes the checksum of bytes that arrive in pieces: XXH3 with 128 bits, which is faster than memory.
pub(super) struct Sums(Hasher);

impl Sums {
    pub(super) fn new() -> Self {
        Self(Hasher::new())
    }

    pub(super) fn add(&mut self, piece: &[u8]) {
        self.0.write(piece);
    }

    pub(super) fn finish(&self) -> Sum {
        Sum(self.0.finish_128())
    }
}

/// Returns a descriptor of a file that cannot write.
///
/// # Errors
///
/// Returns the system's error, for people.
pub(super) fn read_only(file: &File) -> Result<File, String> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::open(path).map_err(|error| error.to_string())
}

/// Makes a file with this content. The returned descriptor cannot write.
///
/// # Errors
///
/// Returns the system's error, for people.
pub(super) fn file_of(content: &[u8]) -> Result<File, String> {
    let make_and_write = || {
        let file = make(content.len() as u64)?;
        file.write_all_at(content, 0)?;
        io::Result::Ok(file)
    };
    read_only(&make_and_write().map_err(|error| error.to_string())?)
}

/// Makes an empty file.
///
/// # Errors
///
/// Returns the system's error.
pub(super) fn make(size: u64) -> io::Result<File> {
    // Beyond this limit, the kernel sends SIGXFSZ, which ends a process that does not ignore it.
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if size > limit {
        return Err(Errno::EFBIG.into());
    }
    let file = File::from(unix::memory_file(c"ragent-memory")?);
    file.set_len(size)?;
    Ok(file)
}

fn make_pages(file: &File, size: u64) -> io::Result<()> {
    let offset = |at: u64| off_t::try_from(at).map_err(|_| io::Error::from(Errno::EFBIG));
    let mut at = 0;
    while at < size {
        let len = (size - at).min(limits::PAGES_PIECE);
        match fallocate(file, FallocateFlags::empty(), offset(at)?, offset(len)?) {
            Ok(()) => at += len,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A buffer has its size and all its pages once a worker gets it. A descriptor for readers cannot write.
    #[test]
    fn buffers_have_pages() {
        let buffers = Buffers::default();
        let buffer = Buffer { id: 1, size: 3 * MIB + 5 };
        let file = buffers.get(buffer);
        let about = file.open().unwrap().metadata().unwrap();
        assert_eq!((about.len(), about.blocks()), (buffer.size, 0));
        let about = file.with_pages().unwrap().metadata().unwrap();
        assert!(about.blocks() * 512 >= buffer.size, "{}", about.blocks());
        assert!(file.read_only().unwrap().write_at(b"x", 0).is_err());
        assert!(Arc::ptr_eq(&file, &buffers.get(buffer)));
        assert!(buffers.remove(buffer).is_some() && buffers.remove(buffer).is_none());
    }

    /// A file that is too large is an error, not the end of the process.
    #[test]
    fn too_large_files_are_refused() {
        let file = MemoryFile::new(Buffer { id: 1, size: u64::MAX });
        assert!(file.open().is_err() && file.with_pages().is_err() && file.read_only().is_err());
    }

    /// The checksum is XXH3 of the first bytes, however they are divided into pieces.
    #[test]
    fn checksums_are_those_of_xxh3() {
        let file = MemoryFile::new(Buffer { id: 1, size: 3 * MIB });
        let bytes: Vec<u8> = (0..2 * MIB + 77).map(|n| (n * 31 % 251) as u8).collect();
        file.open().unwrap().write_all_at(&bytes, 0).unwrap();
        let sum = file.sum(bytes.len() as u64, || false).unwrap();
        assert_eq!(sum, Sum(Hasher::oneshot(&bytes)));
        // The reference value for no bytes at all.
        assert_eq!(Sums::new().finish(), Sum(0x99aa_06d3_0147_98d8_6001_c324_468d_497f));
        assert!(file.sum(4 * MIB, || false).is_err(), "there are fewer bytes");
        let empty = MemoryFile::new(Buffer { id: 2, size: MIB });
        assert!(empty.sum(MIB, || false).is_err() && empty.read_only().is_err());
    }
}
