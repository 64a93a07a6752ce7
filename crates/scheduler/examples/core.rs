//! temp
#[path = "../../bench/src/scheduler.rs"]
mod scheduler;
fn main() {
    let start = std::time::Instant::now();
    let only = std::env::args().nth(1);
    for w in scheduler::workloads() {
        if only.as_ref().is_some_and(|o| !w.name.contains(o.as_str())) {
            continue;
        }
        match scheduler::run(&w, &|| start.elapsed().as_secs_f64()) {
            Ok(f) => println!("{:70} {:>9.0}/s  {:.3}s", f.workload, f.per_second(), f.seconds),
            Err(e) => println!("{e}"),
        }
    }
}
