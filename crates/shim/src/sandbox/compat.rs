//! The other architectures whose programs the kernel of this one runs, with the numbers of their system calls (Linux's tables,
//! sorted by name): i386 and x32 on x86-64, 32-bit ARM on aarch64.

use super::syscalls::number;

/// The 32-bit architecture.
pub struct Compat {
    /// As a profile names it.
    pub name: &'static str,
    /// What seccomp calls it (linux/audit.h).
    pub architecture: u32,
    /// System calls that make others, by their first argument, and these others.
    pub multiplexers: &'static [(&'static str, &'static [&'static str])],
}

#[cfg(target_arch = "x86_64")]
pub const COMPAT: Option<Compat> = Some(Compat {
    name: "SCMP_ARCH_X86",
    architecture: 0x4000_0003,
    multiplexers: &[("socketcall", &SOCKETCALLS), ("ipc", &IPC_CALLS)],
});
#[cfg(target_arch = "aarch64")]
pub const COMPAT: Option<Compat> = Some(Compat {
    name: "SCMP_ARCH_ARM",
    architecture: 0x4000_0028,
    multiplexers: &[],
});
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub const COMPAT: Option<Compat> = None;

/// The architecture of 64-bit registers and 32-bit pointers: x86-64's, by its numbers another one.
pub const X32_NAME: &str = "SCMP_ARCH_X32";
/// Its system calls begin here.
pub const X32: u32 = 0x4000_0000;

/// The number of a system call of [`COMPAT`].
pub fn compat_number(name: &str) -> Option<u32> {
    find(CALLS, name)
}

/// The number of a system call of x32: x86-64's, but for those with pointers in structures.
pub fn x32_number(name: &str) -> Option<u32> {
    if !cfg!(target_arch = "x86_64") || X32_ABSENT.contains(&name) {
        return None;
    }
    find(X32_CALLS, name)
        .or_else(|| number(name))
        .map(|number| X32 | number)
}

fn find(calls: &[(&str, u32)], name: &str) -> Option<u32> {
    let position = calls.binary_search_by_key(&name, |(name, _)| name).ok()?;
    calls.get(position).map(|(_, number)| *number)
}

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const SOCKETCALLS: [&str; 20] = [
    "socket", "bind", "connect", "listen", "accept", "getsockname", "getpeername", "socketpair", "send",
    "recv", "sendto", "recvfrom", "shutdown", "setsockopt", "getsockopt", "sendmsg", "recvmsg", "accept4",
    "recvmmsg", "sendmmsg",
];

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const IPC_CALLS: [&str; 12] = [
    "semop", "semget", "semctl", "semtimedop", "msgsnd", "msgrcv", "msgget", "msgctl", "shmat", "shmdt",
    "shmget", "shmctl",
];

/// Those of x86-64 that x32 does not have.
#[rustfmt::skip]
const X32_ABSENT: [&str; 11] = [
    "_sysctl", "create_module", "epoll_ctl_old", "epoll_wait_old", "get_kernel_syms", "get_thread_area",
    "nfsservctl", "query_module", "set_thread_area", "uselib", "vserver",
];

#[rustfmt::skip]
const X32_CALLS: &[(&str, u32)] = &[
    ("execve", 520), ("execveat", 545), ("get_robust_list", 531), ("getsockopt", 542), ("io_setup", 543),
    ("io_submit", 544), ("ioctl", 514), ("kexec_load", 528), ("move_pages", 533), ("mq_notify", 527),
    ("preadv", 534), ("preadv2", 546), ("process_vm_readv", 539), ("process_vm_writev", 540),
    ("ptrace", 521), ("pwritev", 535), ("pwritev2", 547), ("readv", 515), ("recvfrom", 517),
    ("recvmmsg", 537), ("recvmsg", 519), ("rt_sigaction", 512), ("rt_sigpending", 522),
    ("rt_sigqueueinfo", 524), ("rt_sigreturn", 513), ("rt_sigtimedwait", 523), ("rt_tgsigqueueinfo", 536),
    ("sendmmsg", 538), ("sendmsg", 518), ("set_robust_list", 530), ("setsockopt", 541),
    ("sigaltstack", 525), ("timer_create", 526), ("vmsplice", 532), ("waitid", 529), ("writev", 516),
];

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const CALLS: &[(&str, u32)] = &[
    ("_llseek", 140), ("_newselect", 142), ("_sysctl", 149), ("accept4", 364), ("access", 33), ("acct", 51),
    ("add_key", 286), ("adjtimex", 124), ("afs_syscall", 137), ("alarm", 27), ("arch_prctl", 384),
    ("bdflush", 134), ("bind", 361), ("bpf", 357), ("break", 17), ("brk", 45), ("cachestat", 451),
    ("capget", 184), ("capset", 185), ("chdir", 12), ("chmod", 15), ("chown", 182), ("chown32", 212),
    ("chroot", 61), ("clock_adjtime", 343), ("clock_adjtime64", 405), ("clock_getres", 266),
    ("clock_getres_time64", 406), ("clock_gettime", 265), ("clock_gettime64", 403),
    ("clock_nanosleep", 267), ("clock_nanosleep_time64", 407), ("clock_settime", 264),
    ("clock_settime64", 404), ("clone", 120), ("clone3", 435), ("close", 6), ("close_range", 436),
    ("connect", 362), ("copy_file_range", 377), ("creat", 8), ("create_module", 127),
    ("delete_module", 129), ("dup", 41), ("dup2", 63), ("dup3", 330), ("epoll_create", 254),
    ("epoll_create1", 329), ("epoll_ctl", 255), ("epoll_pwait", 319), ("epoll_pwait2", 441),
    ("epoll_wait", 256), ("eventfd", 323), ("eventfd2", 328), ("execve", 11), ("execveat", 358),
    ("exit", 1), ("exit_group", 252), ("faccessat", 307), ("faccessat2", 439), ("fadvise64", 250),
    ("fadvise64_64", 272), ("fallocate", 324), ("fanotify_init", 338), ("fanotify_mark", 339),
    ("fchdir", 133), ("fchmod", 94), ("fchmodat", 306), ("fchmodat2", 452), ("fchown", 95),
    ("fchown32", 207), ("fchownat", 298), ("fcntl", 55), ("fcntl64", 221), ("fdatasync", 148),
    ("fgetxattr", 231), ("finit_module", 350), ("flistxattr", 234), ("flock", 143), ("fork", 2),
    ("fremovexattr", 237), ("fsconfig", 431), ("fsetxattr", 228), ("fsmount", 432), ("fsopen", 430),
    ("fspick", 433), ("fstat", 108), ("fstat64", 197), ("fstatat64", 300), ("fstatfs", 100),
    ("fstatfs64", 269), ("fsync", 118), ("ftime", 35), ("ftruncate", 93), ("ftruncate64", 194),
    ("futex", 240), ("futex_requeue", 456), ("futex_time64", 422), ("futex_wait", 455),
    ("futex_waitv", 449), ("futex_wake", 454), ("futimesat", 299), ("get_kernel_syms", 130),
    ("get_mempolicy", 275), ("get_robust_list", 312), ("get_thread_area", 244), ("getcpu", 318),
    ("getcwd", 183), ("getdents", 141), ("getdents64", 220), ("getegid", 50), ("getegid32", 202),
    ("geteuid", 49), ("geteuid32", 201), ("getgid", 47), ("getgid32", 200), ("getgroups", 80),
    ("getgroups32", 205), ("getitimer", 105), ("getpeername", 368), ("getpgid", 132), ("getpgrp", 65),
    ("getpid", 20), ("getpmsg", 188), ("getppid", 64), ("getpriority", 96), ("getrandom", 355),
    ("getresgid", 171), ("getresgid32", 211), ("getresuid", 165), ("getresuid32", 209), ("getrlimit", 76),
    ("getrusage", 77), ("getsid", 147), ("getsockname", 367), ("getsockopt", 365), ("gettid", 224),
    ("gettimeofday", 78), ("getuid", 24), ("getuid32", 199), ("getxattr", 229), ("gtty", 32), ("idle", 112),
    ("init_module", 128), ("inotify_add_watch", 292), ("inotify_init", 291), ("inotify_init1", 332),
    ("inotify_rm_watch", 293), ("io_cancel", 249), ("io_destroy", 246), ("io_getevents", 247),
    ("io_pgetevents", 385), ("io_pgetevents_time64", 416), ("io_setup", 245), ("io_submit", 248),
    ("io_uring_enter", 426), ("io_uring_register", 427), ("io_uring_setup", 425), ("ioctl", 54),
    ("ioperm", 101), ("iopl", 110), ("ioprio_get", 290), ("ioprio_set", 289), ("ipc", 117), ("kcmp", 349),
    ("kexec_load", 283), ("keyctl", 288), ("kill", 37), ("landlock_add_rule", 445),
    ("landlock_create_ruleset", 444), ("landlock_restrict_self", 446), ("lchown", 16), ("lchown32", 198),
    ("lgetxattr", 230), ("link", 9), ("linkat", 303), ("listen", 363), ("listmount", 458),
    ("listxattr", 232), ("llistxattr", 233), ("lock", 53), ("lookup_dcookie", 253), ("lremovexattr", 236),
    ("lseek", 19), ("lsetxattr", 227), ("lstat", 107), ("lstat64", 196), ("madvise", 219),
    ("map_shadow_stack", 453), ("mbind", 274), ("membarrier", 375), ("memfd_create", 356),
    ("memfd_secret", 447), ("migrate_pages", 294), ("mincore", 218), ("mkdir", 39), ("mkdirat", 296),
    ("mknod", 14), ("mknodat", 297), ("mlock", 150), ("mlock2", 376), ("mlockall", 152), ("mmap", 90),
    ("mmap2", 192), ("modify_ldt", 123), ("mount", 21), ("mount_setattr", 442), ("move_mount", 429),
    ("move_pages", 317), ("mprotect", 125), ("mpx", 56), ("mq_getsetattr", 282), ("mq_notify", 281),
    ("mq_open", 277), ("mq_timedreceive", 280), ("mq_timedreceive_time64", 419), ("mq_timedsend", 279),
    ("mq_timedsend_time64", 418), ("mq_unlink", 278), ("mremap", 163), ("mseal", 462), ("msgctl", 402),
    ("msgget", 399), ("msgrcv", 401), ("msgsnd", 400), ("msync", 144), ("munlock", 151),
    ("munlockall", 153), ("munmap", 91), ("name_to_handle_at", 341), ("nanosleep", 162),
    ("nfsservctl", 169), ("nice", 34), ("oldfstat", 28), ("oldlstat", 84), ("oldolduname", 59),
    ("oldstat", 18), ("olduname", 109), ("open", 5), ("open_by_handle_at", 342), ("open_tree", 428),
    ("openat", 295), ("openat2", 437), ("pause", 29), ("perf_event_open", 336), ("personality", 136),
    ("pidfd_getfd", 438), ("pidfd_open", 434), ("pidfd_send_signal", 424), ("pipe", 42), ("pipe2", 331),
    ("pivot_root", 217), ("pkey_alloc", 381), ("pkey_free", 382), ("pkey_mprotect", 380), ("poll", 168),
    ("ppoll", 309), ("ppoll_time64", 414), ("prctl", 172), ("pread64", 180), ("preadv", 333),
    ("preadv2", 378), ("prlimit64", 340), ("process_madvise", 440), ("process_mrelease", 448),
    ("process_vm_readv", 347), ("process_vm_writev", 348), ("prof", 44), ("profil", 98), ("pselect6", 308),
    ("pselect6_time64", 413), ("ptrace", 26), ("putpmsg", 189), ("pwrite64", 181), ("pwritev", 334),
    ("pwritev2", 379), ("query_module", 167), ("quotactl", 131), ("quotactl_fd", 443), ("read", 3),
    ("readahead", 225), ("readdir", 89), ("readlink", 85), ("readlinkat", 305), ("readv", 145),
    ("reboot", 88), ("recvfrom", 371), ("recvmmsg", 337), ("recvmmsg_time64", 417), ("recvmsg", 372),
    ("remap_file_pages", 257), ("removexattr", 235), ("rename", 38), ("renameat", 302), ("renameat2", 353),
    ("request_key", 287), ("restart_syscall", 0), ("rmdir", 40), ("rseq", 386), ("rt_sigaction", 174),
    ("rt_sigpending", 176), ("rt_sigprocmask", 175), ("rt_sigqueueinfo", 178), ("rt_sigreturn", 173),
    ("rt_sigsuspend", 179), ("rt_sigtimedwait", 177), ("rt_sigtimedwait_time64", 421),
    ("rt_tgsigqueueinfo", 335), ("sched_get_priority_max", 159), ("sched_get_priority_min", 160),
    ("sched_getaffinity", 242), ("sched_getattr", 352), ("sched_getparam", 155),
    ("sched_getscheduler", 157), ("sched_rr_get_interval", 161), ("sched_rr_get_interval_time64", 423),
    ("sched_setaffinity", 241), ("sched_setattr", 351), ("sched_setparam", 154),
    ("sched_setscheduler", 156), ("sched_yield", 158), ("seccomp", 354), ("select", 82), ("semctl", 394),
    ("semget", 393), ("semtimedop_time64", 420), ("sendfile", 187), ("sendfile64", 239), ("sendmmsg", 345),
    ("sendmsg", 370), ("sendto", 369), ("set_mempolicy", 276), ("set_mempolicy_home_node", 450),
    ("set_robust_list", 311), ("set_thread_area", 243), ("set_tid_address", 258), ("setdomainname", 121),
    ("setfsgid", 139), ("setfsgid32", 216), ("setfsuid", 138), ("setfsuid32", 215), ("setgid", 46),
    ("setgid32", 214), ("setgroups", 81), ("setgroups32", 206), ("sethostname", 74), ("setitimer", 104),
    ("setns", 346), ("setpgid", 57), ("setpriority", 97), ("setregid", 71), ("setregid32", 204),
    ("setresgid", 170), ("setresgid32", 210), ("setresuid", 164), ("setresuid32", 208), ("setreuid", 70),
    ("setreuid32", 203), ("setrlimit", 75), ("setsid", 66), ("setsockopt", 366), ("settimeofday", 79),
    ("setuid", 23), ("setuid32", 213), ("setxattr", 226), ("sgetmask", 68), ("shmat", 397), ("shmctl", 396),
    ("shmdt", 398), ("shmget", 395), ("shutdown", 373), ("sigaction", 67), ("sigaltstack", 186),
    ("signal", 48), ("signalfd", 321), ("signalfd4", 327), ("sigpending", 73), ("sigprocmask", 126),
    ("sigreturn", 119), ("sigsuspend", 72), ("socket", 359), ("socketcall", 102), ("socketpair", 360),
    ("splice", 313), ("ssetmask", 69), ("stat", 106), ("stat64", 195), ("statfs", 99), ("statfs64", 268),
    ("statmount", 457), ("statx", 383), ("stime", 25), ("stty", 31), ("swapoff", 115), ("swapon", 87),
    ("symlink", 83), ("symlinkat", 304), ("sync", 36), ("sync_file_range", 314), ("syncfs", 344),
    ("sysfs", 135), ("sysinfo", 116), ("syslog", 103), ("tee", 315), ("tgkill", 270), ("time", 13),
    ("timer_create", 259), ("timer_delete", 263), ("timer_getoverrun", 262), ("timer_gettime", 261),
    ("timer_gettime64", 408), ("timer_settime", 260), ("timer_settime64", 409), ("timerfd_create", 322),
    ("timerfd_gettime", 326), ("timerfd_gettime64", 410), ("timerfd_settime", 325),
    ("timerfd_settime64", 411), ("times", 43), ("tkill", 238), ("truncate", 92), ("truncate64", 193),
    ("ugetrlimit", 191), ("ulimit", 58), ("umask", 60), ("umount", 22), ("umount2", 52), ("uname", 122),
    ("unlink", 10), ("unlinkat", 301), ("unshare", 310), ("uselib", 86), ("userfaultfd", 374),
    ("ustat", 62), ("utime", 30), ("utimensat", 320), ("utimensat_time64", 412), ("utimes", 271),
    ("vfork", 190), ("vhangup", 111), ("vm86", 166), ("vm86old", 113), ("vmsplice", 316), ("vserver", 273),
    ("wait4", 114), ("waitid", 284), ("waitpid", 7), ("write", 4), ("writev", 146),
];

#[cfg(target_arch = "aarch64")]
#[rustfmt::skip]
const CALLS: &[(&str, u32)] = &[
    ("_llseek", 140), ("_newselect", 142), ("_sysctl", 149), ("accept", 285), ("accept4", 366),
    ("access", 33), ("acct", 51), ("add_key", 309), ("adjtimex", 124), ("arm_fadvise64_64", 270),
    ("arm_sync_file_range", 341), ("bdflush", 134), ("bind", 282), ("bpf", 386), ("breakpoint", 983041),
    ("brk", 45), ("cacheflush", 983042), ("cachestat", 451), ("capget", 184), ("capset", 185),
    ("chdir", 12), ("chmod", 15), ("chown", 182), ("chown32", 212), ("chroot", 61), ("clock_adjtime", 372),
    ("clock_getres", 264), ("clock_gettime", 263), ("clock_nanosleep", 265), ("clock_settime", 262),
    ("clone", 120), ("clone3", 435), ("close", 6), ("close_range", 436), ("connect", 283),
    ("copy_file_range", 391), ("creat", 8), ("delete_module", 129), ("dup", 41), ("dup2", 63),
    ("dup3", 358), ("epoll_create", 250), ("epoll_create1", 357), ("epoll_ctl", 251), ("epoll_pwait", 346),
    ("epoll_pwait2", 441), ("epoll_wait", 252), ("eventfd", 351), ("eventfd2", 356), ("execve", 11),
    ("execveat", 387), ("exit", 1), ("exit_group", 248), ("faccessat", 334), ("faccessat2", 439),
    ("fallocate", 352), ("fanotify_init", 367), ("fanotify_mark", 368), ("fchdir", 133), ("fchmod", 94),
    ("fchmodat", 333), ("fchmodat2", 452), ("fchown", 95), ("fchown32", 207), ("fchownat", 325),
    ("fcntl", 55), ("fcntl64", 221), ("fdatasync", 148), ("fgetxattr", 231), ("finit_module", 379),
    ("flistxattr", 234), ("flock", 143), ("fork", 2), ("fremovexattr", 237), ("fsconfig", 431),
    ("fsetxattr", 228), ("fsmount", 432), ("fsopen", 430), ("fspick", 433), ("fstat", 108),
    ("fstat64", 197), ("fstatat64", 327), ("fstatfs", 100), ("fstatfs64", 267), ("fsync", 118),
    ("ftruncate", 93), ("ftruncate64", 194), ("futex", 240), ("futex_requeue", 456), ("futex_wait", 455),
    ("futex_waitv", 449), ("futex_wake", 454), ("futimesat", 326), ("get_mempolicy", 320),
    ("get_robust_list", 339), ("getcpu", 345), ("getcwd", 183), ("getdents", 141), ("getdents64", 217),
    ("getegid", 50), ("getegid32", 202), ("geteuid", 49), ("geteuid32", 201), ("getgid", 47),
    ("getgid32", 200), ("getgroups", 80), ("getgroups32", 205), ("getitimer", 105), ("getpeername", 287),
    ("getpgid", 132), ("getpgrp", 65), ("getpid", 20), ("getppid", 64), ("getpriority", 96),
    ("getrandom", 384), ("getresgid", 171), ("getresgid32", 211), ("getresuid", 165), ("getresuid32", 209),
    ("getrusage", 77), ("getsid", 147), ("getsockname", 286), ("getsockopt", 295), ("gettid", 224),
    ("gettimeofday", 78), ("getuid", 24), ("getuid32", 199), ("getxattr", 229), ("init_module", 128),
    ("inotify_add_watch", 317), ("inotify_init", 316), ("inotify_init1", 360), ("inotify_rm_watch", 318),
    ("io_cancel", 247), ("io_destroy", 244), ("io_getevents", 245), ("io_setup", 243), ("io_submit", 246),
    ("io_uring_enter", 426), ("io_uring_register", 427), ("io_uring_setup", 425), ("ioctl", 54),
    ("ioprio_get", 315), ("ioprio_set", 314), ("kcmp", 378), ("kexec_file_load", 401), ("kexec_load", 347),
    ("keyctl", 311), ("kill", 37), ("landlock_add_rule", 445), ("landlock_create_ruleset", 444),
    ("landlock_restrict_self", 446), ("lchown", 16), ("lchown32", 198), ("lgetxattr", 230), ("link", 9),
    ("linkat", 330), ("listen", 284), ("listmount", 458), ("listxattr", 232), ("llistxattr", 233),
    ("lookup_dcookie", 249), ("lremovexattr", 236), ("lseek", 19), ("lsetxattr", 227), ("lstat", 107),
    ("lstat64", 196), ("madvise", 220), ("map_shadow_stack", 453), ("mbind", 319), ("membarrier", 389),
    ("memfd_create", 385), ("memfd_secret", 447), ("mincore", 219), ("mkdir", 39), ("mkdirat", 323),
    ("mknod", 14), ("mknodat", 324), ("mlock", 150), ("mlock2", 390), ("mlockall", 152), ("mmap2", 192),
    ("mount", 21), ("mount_setattr", 442), ("move_mount", 429), ("move_pages", 344), ("mprotect", 125),
    ("mq_getsetattr", 279), ("mq_notify", 278), ("mq_open", 274), ("mq_timedreceive", 277),
    ("mq_timedsend", 276), ("mq_unlink", 275), ("mremap", 163), ("mseal", 462), ("msgctl", 304),
    ("msgget", 303), ("msgrcv", 302), ("msgsnd", 301), ("msync", 144), ("munlock", 151),
    ("munlockall", 153), ("munmap", 91), ("name_to_handle_at", 370), ("nanosleep", 162),
    ("nfsservctl", 169), ("nice", 34), ("open", 5), ("open_by_handle_at", 371), ("open_tree", 428),
    ("openat", 322), ("openat2", 437), ("pause", 29), ("pciconfig_iobase", 271), ("pciconfig_read", 272),
    ("pciconfig_write", 273), ("perf_event_open", 364), ("personality", 136), ("pidfd_getfd", 438),
    ("pidfd_open", 434), ("pidfd_send_signal", 424), ("pipe", 42), ("pipe2", 359), ("pivot_root", 218),
    ("pkey_alloc", 395), ("pkey_free", 396), ("pkey_mprotect", 394), ("poll", 168), ("ppoll", 336),
    ("prctl", 172), ("pread64", 180), ("preadv", 361), ("preadv2", 392), ("prlimit64", 369),
    ("process_madvise", 440), ("process_mrelease", 448), ("process_vm_readv", 376),
    ("process_vm_writev", 377), ("pselect6", 335), ("ptrace", 26), ("pwrite64", 181), ("pwritev", 362),
    ("pwritev2", 393), ("quotactl", 131), ("quotactl_fd", 443), ("read", 3), ("readahead", 225),
    ("readlink", 85), ("readlinkat", 332), ("readv", 145), ("reboot", 88), ("recv", 291), ("recvfrom", 292),
    ("recvmmsg", 365), ("recvmsg", 297), ("remap_file_pages", 253), ("removexattr", 235), ("rename", 38),
    ("renameat", 329), ("renameat2", 382), ("request_key", 310), ("restart_syscall", 0), ("rmdir", 40),
    ("rseq", 398), ("rt_sigaction", 174), ("rt_sigpending", 176), ("rt_sigprocmask", 175),
    ("rt_sigqueueinfo", 178), ("rt_sigreturn", 173), ("rt_sigsuspend", 179), ("rt_sigtimedwait", 177),
    ("rt_tgsigqueueinfo", 363), ("sched_get_priority_max", 159), ("sched_get_priority_min", 160),
    ("sched_getaffinity", 242), ("sched_getattr", 381), ("sched_getparam", 155),
    ("sched_getscheduler", 157), ("sched_rr_get_interval", 161), ("sched_setaffinity", 241),
    ("sched_setattr", 380), ("sched_setparam", 154), ("sched_setscheduler", 156), ("sched_yield", 158),
    ("seccomp", 383), ("semctl", 300), ("semget", 299), ("semop", 298), ("semtimedop", 312), ("send", 289),
    ("sendfile", 187), ("sendfile64", 239), ("sendmmsg", 374), ("sendmsg", 296), ("sendto", 290),
    ("set_mempolicy", 321), ("set_mempolicy_home_node", 450), ("set_robust_list", 338),
    ("set_tid_address", 256), ("set_tls", 983045), ("setdomainname", 121), ("setfsgid", 139),
    ("setfsgid32", 216), ("setfsuid", 138), ("setfsuid32", 215), ("setgid", 46), ("setgid32", 214),
    ("setgroups", 81), ("setgroups32", 206), ("sethostname", 74), ("setitimer", 104), ("setns", 375),
    ("setpgid", 57), ("setpriority", 97), ("setregid", 71), ("setregid32", 204), ("setresgid", 170),
    ("setresgid32", 210), ("setresuid", 164), ("setresuid32", 208), ("setreuid", 70), ("setreuid32", 203),
    ("setrlimit", 75), ("setsid", 66), ("setsockopt", 294), ("settimeofday", 79), ("setuid", 23),
    ("setuid32", 213), ("setxattr", 226), ("shmat", 305), ("shmctl", 308), ("shmdt", 306), ("shmget", 307),
    ("shutdown", 293), ("sigaction", 67), ("sigaltstack", 186), ("signalfd", 349), ("signalfd4", 355),
    ("sigpending", 73), ("sigprocmask", 126), ("sigreturn", 119), ("sigsuspend", 72), ("socket", 281),
    ("socketpair", 288), ("splice", 340), ("stat", 106), ("stat64", 195), ("statfs", 99), ("statfs64", 266),
    ("statmount", 457), ("statx", 397), ("swapoff", 115), ("swapon", 87), ("symlink", 83),
    ("symlinkat", 331), ("sync", 36), ("sync_file_range2", 341), ("syncfs", 373), ("sysfs", 135),
    ("sysinfo", 116), ("syslog", 103), ("tee", 342), ("tgkill", 268), ("timer_create", 257),
    ("timer_delete", 261), ("timer_getoverrun", 260), ("timer_gettime", 259), ("timer_settime", 258),
    ("timerfd_create", 350), ("timerfd_gettime", 354), ("timerfd_settime", 353), ("times", 43),
    ("tkill", 238), ("truncate", 92), ("truncate64", 193), ("ugetrlimit", 191), ("umask", 60),
    ("umount2", 52), ("uname", 122), ("unlink", 10), ("unlinkat", 328), ("unshare", 337), ("uselib", 86),
    ("userfaultfd", 388), ("usr26", 983043), ("usr32", 983044), ("ustat", 62), ("utimensat", 348),
    ("utimes", 269), ("vfork", 190), ("vhangup", 111), ("vmsplice", 343), ("vserver", 313), ("wait4", 114),
    ("waitid", 280), ("write", 4), ("writev", 146),
];

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CALLS: &[(&str, u32)] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted_by_name_without_repetition() {
        for calls in [CALLS, X32_CALLS] {
            assert!(calls.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn numbers_are_those_of_their_architecture() {
        for (name, i386, x32) in [
            ("read", Some(3), Some(X32)),
            ("rt_sigaction", Some(174), Some(X32 | 512)),
            ("socketcall", Some(102), None),
            ("vserver", Some(273), None),
            ("mseal", Some(462), Some(X32 | 462)),
            ("no_such_call", None, None),
        ] {
            assert_eq!((compat_number(name), x32_number(name)), (i386, x32), "{name}");
        }
    }
}
