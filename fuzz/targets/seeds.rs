//! Writes every target's seeds, one file each, to `<directory>/<target>/`.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: seeds <directory>");
        std::process::exit(2);
    };
    for target in knarr_fuzz::TARGETS {
        let directory = directory.join(target.name);
        std::fs::create_dir_all(&directory)?;
        for (i, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(directory.join(format!("seed-{i}")), seed)?;
        }
    }
    Ok(())
}
