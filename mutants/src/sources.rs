//! The files of the tree, as they were when the run began. What is edited later does not reach the build.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::process::Command;

/// All files that git does not ignore, by their paths below the root.
pub struct Sources(BTreeMap<String, Vec<u8>>);

impl Sources {
    /// # Errors
    /// git cannot list the files.
    pub fn read(tree: &Path) -> Result<Self, String> {
        let output = Command::new("git")
            .current_dir(tree)
            .args(["ls-files", "-coz", "--exclude-standard"])
            .output()
            .map_err(|error| format!("git ls-files: {error}"))?;
        if !output.status.success() {
            return Err(format!(
                "git ls-files: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        let listed = String::from_utf8_lossy(&output.stdout);
        // A file that is deleted, and still in the index, cannot be read.
        let files = listed
            .split_terminator('\0')
            .filter_map(|file| Some((file.to_owned(), fs::read(tree.join(file)).ok()?)));
        Ok(Self(files.collect()))
    }

    /// Differs between sources that differ. Another version of Rust may compute another number for the same sources.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        hasher.finish()
    }

    /// # Errors
    /// There is no such file, or it is not text.
    pub fn text(&self, file: &str) -> Result<&str, String> {
        let bytes = self.0.get(file).ok_or_else(|| format!("{file}: not found"))?;
        std::str::from_utf8(bytes).map_err(|error| format!("{file}: {error}"))
    }

    /// Makes the directory a copy of the tree, except for the files that the caller writes itself. A file that is in
    /// the directory and no longer in the tree is removed: cargo would build it, too, if it is a test.
    ///
    /// # Errors
    /// A file cannot be written or removed.
    pub fn copy(&self, directory: &Path, except: &BTreeSet<&str>) -> Result<(), String> {
        for (file, bytes) in &self.0 {
            if !except.contains(file.as_str()) {
                write_changed(&directory.join(file), bytes)?;
            }
        }
        self.remove_others(directory, directory)
            .map_err(|error| format!("{}: {error}", directory.display()))
    }

    fn remove_others(&self, copy: &Path, directory: &Path) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let path = entry.path();
            let file = path.strip_prefix(copy).unwrap_or(&path).to_string_lossy();
            if entry.file_type()?.is_dir() {
                self.remove_others(copy, &path)?;
            } else if !self.0.contains_key(file.as_ref()) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }
}

/// Writes the file if it has other content: cargo builds again what is newer than the build.
///
/// # Errors
/// The file cannot be written.
pub fn write_changed(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(path, bytes))
        .map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Sources {
        let files = files
            .iter()
            .map(|(file, text)| ((*file).to_owned(), text.as_bytes().to_vec()));
        Sources(files.collect())
    }

    #[test]
    fn a_file_that_left_the_tree_leaves_the_copy() {
        let copy = crate::temporary_directory("sources");
        let before = sources(&[("Cargo.toml", "a"), ("tests/old.rs", "b"), ("src/lib.rs", "c")]);
        before.copy(&copy, &BTreeSet::new()).unwrap();
        let after = sources(&[
            ("Cargo.toml", "a"),
            ("tests/it/main.rs", "b"),
            ("src/lib.rs", "d"),
        ]);
        after.copy(&copy, &BTreeSet::from(["src/lib.rs"])).unwrap();
        assert!(!copy.join("tests/old.rs").exists());
        assert_eq!(fs::read_to_string(copy.join("tests/it/main.rs")).unwrap(), "b");
        assert_eq!(
            fs::read_to_string(copy.join("src/lib.rs")).unwrap(),
            "c",
            "the caller writes it"
        );
        fs::remove_dir_all(copy).unwrap();
    }

    #[test]
    fn other_sources_have_another_digest() {
        let digest = sources(&[("a", "1"), ("b", "2")]).digest();
        assert_eq!(sources(&[("a", "1"), ("b", "2")]).digest(), digest);
        for other in [
            sources(&[("a", "1"), ("b", "3")]),
            sources(&[("a", "1"), ("c", "2")]),
            sources(&[("a", "1")]),
        ] {
            assert_ne!(other.digest(), digest);
        }
    }
}
