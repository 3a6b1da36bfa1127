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
                handover_state::acknowledge(&w.ring);
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
                    // A sleep inside the kernel: other threads know of us only by the counter.
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

    /// The state, for the thread that holds the world's lock.
    fn receiving(&self) -> Held<'static, RecvState> {
        // SAFETY: all in a model keep to the world's lock, which our caller holds.
        unsafe { self.world.to.receive.alone() }
    }

    /// As `RecvGuard::take`.
    pub(super) fn take_receive(&self) -> Lived<()> {
        if lock::acquire(&self.world.receive_lock, self.tid, self) == Taken::Broken {
            guard::repair_receive(self.world.to, &mut self.receiving(), &self.world.ring);
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
            ReceiveMode::Asked | ReceiveMode::Acknowledged => self.up_to_the_switch(want)?,
            ReceiveMode::Device => self.from_device(want)?,
            ReceiveMode::Kernel | ReceiveMode::Returned => self.from_kernel(want),
        };
        self.leave_receive()?;
        Ok(answer)
    }

    pub(super) fn up_to_the_switch(&self, want: usize) -> Lived<Answer> {
        let (w, s) = (self.world, self.world.to);
        let switch_offset = handover_state::switch_offset(&w.ring);
        self.step()?;
        let Some(n) = switch_offset else {
            return self.before_the_switch(want);
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
        match s.receive_mode().after(ReceiveEvent::SwitchReached) {
            Some(mode) => s.set_receive_mode(mode),
            None => return Ok(self.broken("cut without acknowledgement")),
        }
        self.step()?;
        self.from_device(want)
    }

    /// As `receive::before_the_switch`.
    pub(super) fn before_the_switch(&self, want: usize) -> Lived<Answer> {
        let w = self.world;
        let (waiting, fin) = w.tcp(|t| (t.queue.len(), t.fin));
        self.step()?;
        if handover_state::switch_offset(&w.ring).is_some() {
            return self.up_to_the_switch(want);
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
        let mut taking = Receiver::new(held.reborrow(), &w.ring).take();
        let mut bytes = self.take_messages(&mut taking, want)?;
        if bytes.is_empty() {
            // As `after_silence`.
            let end = handover_state::end(&w.ring);
            self.step()?;
            if let Some(end) = end
                && taking.arrived().is_none()
            {
                if end != taking.state().total() {
                    return Ok(self.broken("the end mark is elsewhere"));
                }
                self.commit(taking, &[])?;
                s.set_receive_mode(ReceiveMode::Returned);
                self.step()?;
                return Ok(self.from_kernel(want));
            }
            self.step()?;
            let (waiting, fin) = w.tcp(|t| (!t.queue.is_empty(), t.fin));
            self.step()?;
            if waiting {
                if handover_state::end(&w.ring).is_none() {
                    return Ok(self.broken("bytes beyond the cut"));
                }
            } else if fin {
                bytes = self.take_messages(&mut taking, want)?;
                if bytes.is_empty() {
                    return Ok(Answer::End);
                }
            }
        }
        // Also when nothing came: what a dead holder did not give back is due.
        self.commit(taking, &bytes)?;
        Ok(if bytes.is_empty() { Answer::Nothing } else { Answer::Bytes })
    }

    /// As `receive::take_messages`.
    fn take_messages(&self, taking: &mut Taking<'_>, want: usize) -> Lived<Vec<u8>> {
        let mut out = vec![];
        while out.len() < want {
            let readable = match taking.next().expect("a message in its place") {
                Next::Bytes(n) => n as usize,
                Next::Nothing => break,
                Next::End => panic!("nobody says so here"),
            };
            self.step()?;
            let n = readable.min(want - out.len());
            let mut piece = [0u8; 8];
            // SAFETY: at most two bytes, into eight.
            unsafe { taking.copy_out(n as u32, piece.as_mut_ptr(), CopyHint::Ordinary) }
                .expect("a message in the buffer");
            out.extend(&piece[..n]);
        }
        Ok(out)
    }

    /// As `receive::quiet`.
    fn quiet(&self) -> bool {
        let (w, s, held) = (self.world, self.world.to, self.receiving());
        let state = held.view();
        s.unread_hint.load(Ordering::Relaxed) == state.hint()
            && state.readable() == 0
            && w.ring.poll_data(state.data_position).is_none()
            && handover_state::end(&w.ring).is_none()
    }

    /// As what follows in `receive::from_device`. A receiver that dies before the commit has not
    /// received.
    fn commit(&self, taking: Taking<'_>, bytes: &[u8]) -> Lived<()> {
        let (w, s) = (self.world, self.world.to);
        self.step()?;
        taking.commit();
        w.received.lock().unwrap().extend(bytes);
        self.step()?;
        self.give_back()?;
        s.unread_hint.store(self.receiving().view().hint(), Ordering::Release);
        self.step()
    }

    /// As in `room::follows`.
    pub(super) fn give_back(&self) -> Lived<()> {
        let mut held = self.receiving();
        Receiver::new(held.reborrow(), &self.world.ring).give_back_in_steps(|_| self.step())?;
        self.step()
    }

    /// As `detach::refuse`, for the bytes that come in.
    pub fn leave_incoming(&self) -> Lived<()> {
        let (w, s) = (self.world, self.world.to);
        self.refuse_pairing(&w.to_pairing)?;
        self.take_receive()?;
        match s.receive_mode() {
            ReceiveMode::Device => {
                let total = self.receiving().view().total();
                let end = handover_state::end(&w.ring);
                self.step()?;
                if end.is_none() && handover_state::want_return(&w.ring, total)
                    || handover_state::end(&w.ring) == Some(total)
                {
                    self.step()?;
                    s.set_receive_mode(ReceiveMode::Returned);
                }
                // Otherwise the sender was first, and we read on up to its mark. (The library gives
                // up a connection that another program is to go on with.)
            }
            ReceiveMode::Acknowledged => {
                if handover_state::want_return(&w.ring, 0)
                    || handover_state::end(&w.ring) == Some(0)
                {
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
