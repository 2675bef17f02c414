#![doc = include_str!("../docs/guide.md")]

pub mod guarantees {
    #![doc = include_str!("../docs/guarantees.md")]
}

pub mod fencing {
    #![doc = include_str!("../docs/fencing.md")]
}

pub mod elections {
    #![doc = include_str!("../docs/elections.md")]
}

pub mod redisson {
    #![doc = include_str!("../docs/redisson.md")]
}

pub mod shell {
    #![doc = include_str!("../docs/shell.md")]
}

pub mod operations {
    #![doc = include_str!("../docs/operations.md")]
}

pub mod observing {
    #![doc = include_str!("../docs/observing.md")]
}

pub mod performance {
    #![doc = include_str!("../docs/performance.md")]
}

pub mod spans {
    #![doc = include_str!("../docs/spans.md")]
}

pub mod shutdown {
    #![doc = include_str!("../docs/shutdown.md")]
}

pub mod coming_from {
    #![doc = include_str!("../docs/coming-from.md")]
}
