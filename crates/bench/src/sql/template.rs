//! A data folder that is made once per machine and copied for every server.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::BenchError;

/// Goes up when the options under which templates are made change.
const GENERATION: u32 = 1;

/// A folder for one server whose sub-folder `data` is a copy of the template `name`; `make` fills the template once.
///
/// Test processes run side by side, so the template is made under a file lock, and renamed into place when complete.
pub(super) fn folder_from_template(
    name: &str,
    make: impl FnOnce(&Path) -> Result<(), BenchError>,
) -> Result<TempDir, BenchError> {
    let template = template(name, make)?;
    let folder = open_folder(&std::env::temp_dir(), &format!("redlock-{name}-"))?;
    let copied = Command::new("cp")
        .args(["-a", "--reflink=auto"])
        .arg(&template)
        .arg(folder.path().join("data"))
        .status()
        .map_err(BenchError::io("run cp"))?;
    if copied.success() {
        Ok(folder)
    } else {
        Err(BenchError::io("copy the template")(std::io::Error::other(copied.to_string())))
    }
}

fn template(name: &str, make: impl FnOnce(&Path) -> Result<(), BenchError>) -> Result<PathBuf, BenchError> {
    // Not under the target folder: that may lie where the server's user cannot look.
    let uid = rustix::process::geteuid().as_raw();
    let root = std::env::temp_dir().join(format!("redlock-bench-{uid}"));
    fs::create_dir_all(&root).map_err(BenchError::io("make the folder of templates"))?;
    let open = Permissions::from_mode(0o755);
    fs::set_permissions(&root, open).map_err(BenchError::io("open the folder of templates"))?;

    let template = root.join(format!("{name}-{GENERATION}"));
    let lock = File::create(root.join(format!("{name}.lock"))).map_err(BenchError::io("make a lock file"))?;
    lock.lock().map_err(BenchError::io("lock the template"))?;
    if !template.is_dir() {
        let unfinished = open_folder(&root, "unfinished-")?;
        let data = unfinished.path().join("data");
        make(&data)?;
        fs::rename(&data, &template).map_err(BenchError::io("put the template in place"))?;
    }
    Ok(template)
}

/// A folder that the server's user can write to, whatever the umask; what matters is inside `data`, which is its own.
fn open_folder(parent: &Path, prefix: &str) -> Result<TempDir, BenchError> {
    let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent).map_err(BenchError::io("make a folder"))?;
    let open = Permissions::from_mode(0o777);
    fs::set_permissions(folder.path(), open).map_err(BenchError::io("open a folder"))?;
    Ok(folder)
}
