//! The receiving side of the life models.

use std::sync::atomic::Ordering;

use super::*;

/// What TCP answers to a receive that does not wait.
pub(super) enum Answer {
    Bytes,
    Nothing,
    End,
}

impl Me<'_> {
    /// As `pairing::switch_slowly`, the receiver's half.
    pub(super) fn switch_receiving(&self) -> Lived<()> {
        let (w, s) = (self.world, self.world.to);
        let due = matches!(s.receive_mode(), ReceiveMode::Kernel | ReceiveMode::Asked);
        if s.phase() != Phase::Paired || !due || !self.try_pairing(&w.to_pairing) {
            return Ok(());
        }
        if s.phase() != Phase::Paired {
            lock::release(&w.to_pairing, self.tid, self);
            return Ok(());
        }
        if s.receive_mode() == ReceiveMode::Kernel
            && let Some(mode) = s.receive_mode().after(ReceiveEvent::Paired)
        {
            self.step()?;
            s.shift_receive_mode(ReceiveMode::Kernel, mode);
        }
        self.step()?;
        if s.receive_mode() == ReceiveMode::Asked
            && s.inside_receive.load(SeqCst) == 0
            && let Some(mode) = s.receive_mode().after(ReceiveEvent::KernelEmpty)
        {
            self.step()?;
            if s.shift_receive_mode(ReceiveMode::Asked, mode) {
                self.step()?;
                marks::acknowledge(&w.lane);
            }
        }
        self.step()?;
        lock::release(&w.to_pairing, self.tid, self);
        Ok(())
    }

    /// As `socket::enter_receive`: true when libc is to do the call.
    pub(super) fn enter_receive(&self) -> Lived<bool> {
        let s = self.world.to;
        if !s.receive_mode().is_kernel() {
            return Ok(false);
        }
        self.switch_receiving()?;
        self.step()?;
        s.inside_receive.fetch_add(1, SeqCst);
        self.step()?;
        if s.receive_mode_fenced().is_kernel() {
            return Ok(true);
        }
        s.inside_receive.fetch_sub(1, SeqCst);
        Ok(false)
    }

    /// One blocking call of the program's. False at the end of the stream.
    pub fn receive(&self, want: usize) -> Lived<bool> {
        if self.enter_receive()? {
            loop {
                self.step()?;
                match self.from_kernel(want) {
                    // A sleep inside the kernel: nobody knows of us but by the counter.
                    Answer::Nothing => thread::yield_now(),
                    answer => {
                        self.step()?;
                        self.world.to.inside_receive.fetch_sub(1, SeqCst);
                        return Ok(matches!(answer, Answer::Bytes));
                    }
                }
            }
        }
        loop {
            match self.attempt_receive(want)? {
                Answer::Bytes => return Ok(true),
                Answer::End => return Ok(false),
                Answer::Nothing => thread::yield_now(),
            }
        }
    }

    pub(super) fn from_kernel(&self, limit: usize) -> Answer {
        let w = self.world;
        w.tcp(|t| {
            let n = limit.min(t.queue.len());
            if n == 0 {
                return if t.fin { Answer::End } else { Answer::Nothing };
            }
            w.received.lock().unwrap().extend(t.queue.drain(..n));
            t.taken += n as u64;
            Answer::Bytes
        })
    }

    /// As `detach::break_connection`.
    pub(super) fn broken(&self, why: &'static str) -> Answer {
        *self.world.broken.lock().unwrap() = Some(why);
        Answer::End
    }

    /// The state, for who holds the world's lock.
    fn receiving(&self) -> Held<'static, RecvState> {
        // SAFETY: all in a model keep to the world's lock, which our caller holds.
        unsafe { self.world.to.receive.alone() }
    }

    /// As `RecvGuard::take`.
    pub(super) fn take_receive(&self) -> Lived<()> {
        if lock::acquire(&self.world.receive_lock, self.tid, self) == Taken::Broken {
            guard::repair_receive(self.world.to, &mut self.receiving(), &self.world.lane);
        }
        self.step()
    }

    pub(super) fn leave_receive(&self) -> Lived<()> {
        self.step()?;
        lock::release(&self.world.receive_lock, self.tid, self);
        Ok(())
    }

    /// As `receive::attempt`.
    pub(super) fn attempt_receive(&self, want: usize) -> Lived<Answer> {
        self.switch_receiving()?;
        self.step()?;
        if self.world.to.receive_mode().is_kernel() {
            return Ok(self.from_kernel(want));
        }
        self.take_receive()?;
        let answer = match self.world.to.receive_mode() {
            ReceiveMode::Asked | ReceiveMode::Acknowledged => self.up_to_the_cut(want)?,
            ReceiveMode::Device => self.from_device(want)?,
            ReceiveMode::Kernel | ReceiveMode::Returned => self.from_kernel(want),
        };
        self.leave_receive()?;
        Ok(answer)
    }

    pub(super) fn up_to_the_cut(&self, want: usize) -> Lived<Answer> {
        let (w, s) = (self.world, self.world.to);
        let cut = marks::cut(&w.lane);
        self.step()?;
        let Some(n) = cut else {
            return self.before_the_cut(want);
        };
        let taken = w.tcp(|t| t.taken);
        if taken > n {
            return Ok(self.broken("more was taken than the cut"));
        }
        if taken < n {
            return Ok(match self.from_kernel(want.min((n - taken) as usize)) {
                Answer::End => self.broken("TCP ended before the cut"),
                answer => answer,
            });
        }
        match s.receive_mode().after(ReceiveEvent::CutReached) {
            Some(mode) => s.set_receive_mode(mode),
            None => return Ok(self.broken("cut without acknowledgement")),
        }
        self.step()?;
        self.from_device(want)
    }

    /// As `receive::before_the_cut`.
    pub(super) fn before_the_cut(&self, want: usize) -> Lived<Answer> {
        let w = self.world;
        let (waiting, fin) = w.tcp(|t| (t.queue.len(), t.fin));
        self.step()?;
        if marks::cut(&w.lane).is_some() {
            return self.up_to_the_cut(want);
        }
        match waiting {
            0 if fin => Ok(Answer::End),
            0 => Ok(Answer::Nothing),
            n => Ok(self.from_kernel(want.min(n))),
        }
    }

    pub(super) fn from_device(&self, want: usize) -> Lived<Answer> {
        let (w, s) = (self.world, self.world.to);
        // Asked of TCP each time: the library asks now and then.
        if self.quiet() && w.tcp(|t| t.queue.is_empty() && !t.fin) {
            self.step()?;
            return Ok(Answer::Nothing);
        }
        let mut held = self.receiving();
        let mut state = held.draft();
        let mut bytes = self.take_messages(&mut state, want)?;
        if bytes.is_empty() {
            // As `after_silence`.
            let end = marks::end(&w.lane);
            self.step()?;
            if let Some(end) = end
                && w.lane.poll_data(state.data_position).is_none()
            {
                if end != state.total() {
                    return Ok(self.broken("the end mark is elsewhere"));
                }
                self.commit(state, &[])?;
                s.set_receive_mode(ReceiveMode::Returned);
                self.step()?;
                return Ok(self.from_kernel(want));
            }
            self.step()?;
            let (waiting, fin) = w.tcp(|t| (!t.queue.is_empty(), t.fin));
            self.step()?;
            if waiting {
                if marks::end(&w.lane).is_none() {
                    return Ok(self.broken("bytes beyond the cut"));
                }
            } else if fin {
                bytes = self.take_messages(&mut state, want)?;
                if bytes.is_empty() {
                    return Ok(Answer::End);
                }
            }
        }
        // Also when nothing came: what a dead holder did not give back is due.
        self.commit(state, &bytes)?;
        Ok(if bytes.is_empty() { Answer::Nothing } else { Answer::Bytes })
    }

    pub(super) fn take_messages(&self, state: &mut RecvState, want: usize) -> Lived<Vec<u8>> {
        let w = self.world;
        let mut out = vec![];
        while out.len() < want {
            if state.readable() == 0 {
                let Some(word) = w.lane.poll_data(state.data_position) else { break };
                state.data_position = state.data_position.wrapping_add(1);
                let Ok(Message::Data(len)) = Word(word).message() else { panic!("{word:x}") };
                state.current = 0;
                state.half().on_data(len).expect("a message in its place");
                continue;
            }
            self.step()?;
            let region = state.half().next_read();
            let n = (region.len as usize).min(want - out.len());
            let mut piece = [0u8; 8];
            // SAFETY: at most two bytes, into eight.
            assert!(unsafe {
                w.lane.read(u64::from(region.offset), n, piece.as_mut_ptr(), CopyHint::Ordinary)
            });
            out.extend(&piece[..n]);
            state.half().on_read(n as u32);
        }
        Ok(out)
    }

    /// As `receive::quiet`.
    fn quiet(&self) -> bool {
        let (w, s, held) = (self.world, self.world.to, self.receiving());
        let state = held.view();
        s.unread_hint.load(Ordering::Relaxed) == unread_word(state)
            && state.readable() == 0
            && w.lane.poll_data(state.data_position).is_none()
            && marks::end(&w.lane).is_none()
    }

    /// As `receive::publish`. A receiver that dies before the state is published has not received.
    pub(super) fn commit(&self, state: Draft<'_, RecvState>, bytes: &[u8]) -> Lived<()> {
        let (w, s) = (self.world, self.world.to);
        self.step()?;
        state.flip();
        w.received.lock().unwrap().extend(bytes);
        self.step()?;
        self.give_back()?;
        s.unread_hint.store(unread_word(self.receiving().view()), Ordering::Release);
        self.step()
    }

    /// As `room::give_back`.
    pub(super) fn give_back(&self) -> Lived<()> {
        let (w, mut held) = (self.world, self.receiving());
        for bank in 0..2 {
            loop {
                let mut state = held.draft();
                assert_eq!(
                    state.banks[bank].owes(),
                    { state.banks[bank] }.next_update(false).is_some()
                );
                let Some(update) = state.banks[bank].next_update(false) else { break };
                let position = state.control_position;
                state.control_position = position.wrapping_add(1);
                self.step()?;
                if let Some((index, region)) = update.entry {
                    w.lane
                        .post_entry(bank * layout::SEGMENTS + index as usize, entry(bank, region));
                    self.step()?;
                }
                let with = if update.entry.is_some() { layout::WITH_ENTRY } else { 0 };
                w.lane.publish_control(
                    position,
                    update.word.0 | (bank as u32 * layout::LARGE_BANK) | with,
                );
                self.step()?;
                state.flip();
                self.step()?;
            }
        }
        Ok(())
    }

    /// As `detach::refuse`, for the bytes that come in.
    pub fn leave_incoming(&self) -> Lived<()> {
        let (w, s) = (self.world, self.world.to);
        self.refuse_pairing(&w.to_pairing)?;
        self.take_receive()?;
        match s.receive_mode() {
            ReceiveMode::Device => {
                let total = self.receiving().view().total();
                let end = marks::end(&w.lane);
                self.step()?;
                if end.is_none() && marks::want_return(&w.lane, total)
                    || marks::end(&w.lane) == Some(total)
                {
                    self.step()?;
                    s.set_receive_mode(ReceiveMode::Returned);
                }
                // Otherwise the sender was first, and we read on up to its mark. (The library gives
                // up a connection that another program is to go on with.)
            }
            ReceiveMode::Acknowledged => {
                if marks::want_return(&w.lane, 0) || marks::end(&w.lane) == Some(0) {
                    self.step()?;
                    s.set_receive_mode(ReceiveMode::Returned);
                }
            }
            _ => s.set_receive_mode(ReceiveMode::Returned),
        }
        self.leave_receive()?;
        s.set_phase(Phase::Refused);
        Ok(())
    }
}

/// As in `receive`.
fn unread_word(state: &RecvState) -> u64 {
    u64::from(state.data_position) << 32 | u64::from(state.readable())
}
