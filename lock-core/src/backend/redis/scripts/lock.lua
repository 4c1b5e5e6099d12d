-- Every operation of the lock, in one source, so that a server that has forgotten its scripts has forgotten all of them.
--
-- KEYS  1: C, the counter of fencing tokens; 2: W, until when somebody may be waiting; then the key of each item; then the
--       queues of those keys, of all items but `renew`.
-- ARGV  1: how many items; 2: '', or `floor aim`: the least number for fencing tokens, and one to begin with if it is at
--       most 10 ms ahead of the counter (0 for none); 3: how the caller's waiters are called: `life window channel`, the
--       life of a place and the call window in ms ('' where nobody may wait); then each item:
--         acquire  token, ttl in ms, size of the block; takes a place where the key is busy
--         try      the same without a place
--         take     the same, from the holder whose token follows
--         renew    token, ttl in ms, size of the block of new fencing tokens (0 for none), ms that were found to be left
--                  and are too many (0 for none)
--         release  token
--         part     token, how long to keep the key in ms (0 to delete it), 1 if the token may have a place, and 2
--                  more if nobody is to be called
--         inspect
--         force    1 to remove foreign holders too
-- Reply for each item: HELD first-fence size | BUSY pttl foreign position | QUEUED position |
--       RENEWED pttl first-fence size | RELEASED | GONE | ERROR message; then 1 if PUBLISH was refused, or 0; and where
--       ARGV[2] is not empty, TIME in µs.
--
-- A call of nothing but plain renewals has a form of its own, since there may be many thousands a second: KEYS the keys;
-- ARGV 'renew', then for each its token and the ttl in ms. Reply for each: 0 if the ttl is left now, the ms that are left
-- if they are more, -1 for GONE, or the message of an error.
--
-- C is an empty stream. Its last id `ms-seq`, with seq <= 999, is the last fencing token: ms * 1000 + seq.
-- W is a time in ms; no place of any queue ends later.
-- A queue is a hash. `first` and `next` bound the tickets; a token's own field is its ticket, and `#ticket` is its place:
-- `token end life stamp window channel`, times in ms. The stamp says when it was called, or 0.
--
-- Invariants
-- * A key holds a token or nothing; it is written only if it is free and nobody with a live place comes first, or holds
--   the item's own token (or the one to take it from). Nobody is ever given a lease: who is called takes it.
-- * Per item: reads and checks first, then writes, PUBLISH last, each through pcall where it may be refused, so that an
--   error leaves nothing half done and spoils no other item. (A Lua error would keep what was written before it.)
-- * A fencing token is drawn before the key is written, so that a key is never held without a number of its own.
-- * W is written before a place that it would not cover, so that every place is seen.
-- * No clock of a caller decides who holds; the server's decides only who may be passed over. (The floor and the
--   aim of a caller, who has seen several nodes, only raise fencing tokens.)
-- Where nobody waits it is three commands for an acquire and two for a release: each costs as much as the rest together.

local ERROR, HELD, BUSY, QUEUED, RENEWED, RELEASED, GONE = 0, 1, 2, 3, 4, 5, 6
local MARK = 'lock-core:1:' -- what our tokens begin with
local MOST = 2 ^ 53 -- Lua counts no further without gaps
local call, pcall = redis.call, redis.pcall
local KEYS, ARGV = KEYS, ARGV -- quicker to look up

-- The error in a reply, if it is one, with the command, which Redis 7 leaves out.
local function refusal(reply, command)
  return type(reply) == 'table' and reply.err and reply.err .. ' (' .. command .. ')'
end

-- Pushes an expiry out to a ttl from now, and never in. Works without memory to spare. Returns 0 if the ttl is left now, the
-- ms that are left if they are more, or an error.
local gt = 'GT' -- what Redis 7 brought
local function push_out(key, ttl)
  if gt then
    local pushed = pcall('PEXPIRE', key, ttl, gt)
    if pushed == 1 then return 0 end
    if pushed ~= 0 then gt = nil end
  end
  local left = call('PTTL', key)
  if left >= tonumber(ttl) then return left end
  return 0, refusal(pcall('PEXPIRE', key, ttl), 'PEXPIRE')
end

if ARGV[1] == 'renew' then
  local got, replies = call('MGET', unpack(KEYS)), {}
  for i = 1, #KEYS do
    local key, ttl = KEYS[i], ARGV[2 * i + 1]
    if got[i] ~= ARGV[2 * i] then
      replies[i] = -1
    elseif gt and pcall('PEXPIRE', key, ttl, gt) == 1 then
      replies[i] = 0 -- as push_out does, without a function's cost
    else
      local left, failed = push_out(key, ttl)
      replies[i] = failed or left
    end
  end
  return replies
end

local items = tonumber(ARGV[1])
local floor, aim = string.match(ARGV[2], '^(%d+) (%d+)$')
floor, aim = tonumber(floor) or 0, tonumber(aim) or 0

-- Draws a block of fencing tokens from the counter: its first, its size, or an error. A block ends with its millisecond, so
-- that the counter leads the clock by less than one.
local function draw(size)
  local id = pcall('XADD', KEYS[1], 'MAXLEN', '0', '*', '', '')
  if type(id) == 'table' then return nil, nil, refusal(id, 'XADD') end
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  ms, seq = tonumber(ms), tonumber(seq)
  -- Where seq is too large, the clock was set back, or a million were drawn in a second: the next ms begins.
  local first = ms * 1000 + math.min(seq, 1000)
  if aim <= first + 10000 then first = math.max(first, aim) end
  first = math.max(first, floor)
  size = math.min(size, 1000 - first % 1000)
  local last = first + size - 1
  if not (last < MOST) then return nil, nil, 'ERR ' .. KEYS[1] .. ' has counted too far, delete it (XADD)' end
  if seq > 999 or last > ms * 1000 + seq then
    id = string.format('%.0f-%.0f', math.floor(last / 1000), last % 1000) -- not tostring: it would lose digits
    local failed = refusal(pcall('XADD', KEYS[1], 'MAXLEN', '0', id, '', ''), 'XADD')
    if failed then return nil, nil, failed end
  end
  return first, size
end

local got = call('MGET', unpack(KEYS, 2, items + 2))
local waiting = tonumber(got[1]) or 0
if not (waiting < MOST) then waiting = 0 end

-- Most calls are one of these two.
if items == 1 and waiting == 0 and ARGV[2] == '' then
  local operation, key, held, token = ARGV[4], KEYS[3], got[2], ARGV[5]
  if operation == 'release' and held == token then
    if type(pcall('DEL', key)) ~= 'table' then return { RELEASED, 0 } end
  elseif (operation == 'acquire' or operation == 'try') and not held then
    local first, size = draw(tonumber(ARGV[7]))
    if first then
      local set = pcall('SET', key, token, 'PX', ARGV[6], 'NX')
      if set and not set.err then return { HELD, first, size, 0 } end
    end
  end
end

local now = 0 -- the time in ms, where it matters: somebody may be waiting, or takes a place
local micros = 0
local function look_at_clock(call)
  local time = call('TIME')
  if time.err then return refusal(time, 'TIME') end
  micros = time[1] * 1000000 + time[2]
  now = math.floor(micros / 1000)
end
if waiting > 0 or ARGV[2] ~= '' then look_at_clock(call) end
if waiting <= now then waiting = 0 end

local written = {} -- what this call has put at a key: a token, or false
local refused = 0

-- The fencing tokens of an item: the first, how many, or an error. Numbers have to rise per key only, so that keys that have
-- had none in this call share what was drawn last.
local drawn, drawn_size
local has_drawn = {}
local function take_fences(key, size)
  if not drawn or has_drawn[key] or size > drawn_size then
    local failed
    drawn, drawn_size, failed = draw(size)
    if failed then return nil, nil, failed end
    size = drawn_size
  end
  has_drawn[key] = true
  return drawn, size
end

-- The bounds of a queue, and the ticket that a token has there.
local function look(queue, token)
  local found = pcall('HMGET', queue, 'first', 'next', token)
  return tonumber(found[1]), tonumber(found[2]), tonumber(found[3])
end

-- Gives a token a place at the end of the queue, or keeps the one that it has, uncalled. Returns its position, or 0 and
-- perhaps an error.
local function keep_place(queue, token)
  local life, window, channel = string.match(ARGV[3], '^(%d+) (%d+) (.*)$')
  local failed = now == 0 and look_at_clock(pcall)
  if failed then return 0, failed end
  local ends = now + tonumber(life)
  if ends > waiting then
    -- Somewhat later, so that not every place writes it.
    local until_then = ends + 500
    if refusal(pcall('SET', KEYS[2], until_then, 'PX', until_then - now), 'SET') then return 0 end
    waiting = until_then
  end
  local first, following, ticket = look(queue, token)
  local place = token .. ' ' .. ends .. ' ' .. life .. ' 0 ' .. window .. ' ' .. channel
  local reply
  if first and ticket then
    -- Positions count from the first who is there still.
    while first < ticket and not call('HGET', queue, '#' .. first) do first = first + 1 end
    reply = pcall('HSET', queue, '#' .. ticket, place, 'first', first)
  else
    ticket = following or 1
    first = first or ticket
    reply = pcall('HSET', queue, 'first', first, 'next', ticket + 1, token, ticket, '#' .. ticket, place)
  end
  if type(reply) == 'table' then return 0 end
  pcall('PEXPIREAT', queue, waiting + 1000)
  return ticket - first + 1
end

-- Removes the place of a token that gives it up.
local function leave(queue, token)
  local _, _, ticket = look(queue, token)
  if ticket then
    pcall('HDEL', queue, token, '#' .. ticket)
    local left = pcall('HLEN', queue)
    if type(left) == 'number' and left <= 2 then pcall('DEL', queue) end
  end
end

local function has_subscriber(channel)
  if channel == '' then return true end
  local reply = pcall('PUBSUB', 'NUMSUB', channel)
  return reply.err or reply[2] > 0
end

-- Whether a place lives, once it has been called if nobody has called it yet.
local function is_called(queue, key, ticket, place)
  local token, ends, life, stamp, window, channel = string.match(place, '^(%S+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  ends, stamp = tonumber(ends) or 0, tonumber(stamp) or 0
  if now >= ends or ends - now > tonumber(life) then return false end
  if stamp > 0 then return stamp <= now and now <= stamp + window and has_subscriber(channel) end
  local heard = 1
  if channel ~= '' then heard = pcall('PUBLISH', channel, token .. ' ' .. key) end
  if type(heard) == 'table' then
    refused = 1
  elseif heard == 0 then
    return false
  else
    local called = token .. ' ' .. ends .. ' ' .. life .. ' ' .. now .. ' ' .. window .. ' ' .. channel
    pcall('HSET', queue, '#' .. ticket, called)
  end
  return true
end

-- Calls the first live place of a free key between two tickets. Those before it are dropped: ended, called longer ago than
-- their window, or without a subscriber. Returns its ticket; without one, the ticket after the last.
local function call_first(queue, key, first, following)
  for ticket = first, following - 1 do
    local place = call('HGET', queue, '#' .. ticket)
    if place then
      if is_called(queue, key, ticket, place) then
        if ticket > first then pcall('HSET', queue, 'first', ticket) end
        return ticket
      end
      call('HDEL', queue, '#' .. ticket, string.match(place, '^%S*'))
    end
  end
  return following
end

local function call_on(queue, key)
  local first, following = look(queue, '')
  if first and following and call_first(queue, key, first, following) == following then call('DEL', queue) end
end

-- Whether a free key may be taken by a token: nobody with a live place comes first. Then its place is removed.
local function passes(queue, key, token)
  local first, following, ticket = look(queue, token)
  if not first or not following then return true end
  local mine = ticket or following
  if mine > first and call_first(queue, key, first, mine) < mine then return false end
  if not ticket then call('DEL', queue) end -- nobody lives there
  return true, mine + 1 < following, ticket
end

local function is_foreign(token)
  return string.sub(token, 1, #MARK) ~= MARK and 1 or 0
end

local replies, r = {}, 0
local function reply(code, one, two, three)
  replies[r + 1], replies[r + 2], replies[r + 3], replies[r + 4] = code, one, two, three
  r = r + (three and 4 or two and 3 or one and 2 or 1)
end

local a, q = 4, items + 2
for i = 1, items do
  local operation, token, key = ARGV[a], ARGV[a + 1], KEYS[i + 2]
  local queue
  if operation ~= 'renew' then
    q = q + 1
    queue = KEYS[q]
  end
  local held = written[key]
  if held == nil then held = got[i + 1] end

  if operation == 'acquire' or operation == 'try' or operation == 'take' then
    local may_take, others_wait, ticket
    if operation == 'take' then
      may_take = held == token or held == ARGV[a + 4]
    else
      may_take = not held or held == token
    end
    if not may_take then
      if operation == 'take' then
        reply(GONE)
      else
        local left, position, failed = call('PTTL', key), 0
        if operation == 'acquire' then position, failed = keep_place(queue, token) end
        if failed then reply(ERROR, failed) else reply(BUSY, left, is_foreign(held), position) end
      end
    else
      if not held and waiting > 0 then may_take, others_wait, ticket = passes(queue, key, token) end
      if not may_take then
        local position = operation == 'acquire' and keep_place(queue, token) or 0
        reply(QUEUED, position)
      else
        local first, size, failed = take_fences(key, tonumber(ARGV[a + 3]))
        local set
        if failed then
          set = { err = failed }
        elseif held then
          local ttl = ARGV[a + 2]
          -- It may be late, and the lease extended since.
          if held == token then ttl = math.max(ttl, call('PTTL', key)) end
          set = pcall('SET', key, token, 'PX', ttl)
        else
          -- MGET shows what is no string as free.
          set = pcall('SET', key, token, 'PX', ARGV[a + 2], 'NX') or { err = 'WRONGTYPE the key holds no string' }
        end
        if set.err then
          reply(ERROR, failed or refusal(set, 'SET'))
        else
          written[key] = token
          if held and waiting > 0 then
            leave(queue, token)
          elseif ticket and others_wait then
            pcall('HDEL', queue, token, '#' .. ticket)
            pcall('HSET', queue, 'first', ticket + 1)
          elseif ticket then
            pcall('DEL', queue)
          end
          reply(HELD, first, size)
        end
      end
    end
    a = a + (operation == 'take' and 5 or 4)

  elseif operation == 'release' or operation == 'part' then
    local after, quiet = '0', false
    if operation == 'part' then
      after = ARGV[a + 2]
      local ways = tonumber(ARGV[a + 3])
      quiet = ways >= 2
      if ways % 2 == 1 and waiting > 0 then leave(queue, token) end
      a = a + 2
    end
    a = a + 2
    local failed
    if held == token then
      local done
      if after == '0' then
        done = pcall('DEL', key)
        written[key] = false
        held = false
      else
        done = pcall('PEXPIRE', key, after)
      end
      failed = refusal(done, after == '0' and 'DEL' or 'PEXPIRE')
      if failed then reply(ERROR, failed) else reply(RELEASED) end
    else
      reply(GONE)
    end
    if waiting > 0 and not held and not quiet then call_on(queue, key) end

  elseif operation == 'renew' then
    -- Never shortens, but for an expiry that the owner has found to be too far ahead (this clock was set back), if it is
    -- still that one.
    if held ~= token then
      reply(GONE)
    else
      local ttl, found = ARGV[a + 2], tonumber(ARGV[a + 4])
      local left, failed, mends = 0
      if found > 0 then
        local too_far = call('PTTL', key)
        mends = too_far <= found and too_far > found - 2000
      end
      if mends then failed = refusal(pcall('PEXPIRE', key, ttl), 'PEXPIRE') else left, failed = push_out(key, ttl) end
      if failed then
        reply(ERROR, failed)
      else
        local first, size = 0, 0
        if ARGV[a + 3] ~= '0' then first, size = take_fences(key, tonumber(ARGV[a + 3])) end
        reply(RENEWED, left > 0 and left or tonumber(ttl), first or 0, size or 0)
      end
    end
    a = a + 5

  else
    -- What is no string is an error here.
    held = pcall('GET', key)
    if type(held) == 'table' then
      reply(ERROR, refusal(held, 'GET'))
    elseif operation == 'inspect' then
      if held then reply(BUSY, call('PTTL', key), is_foreign(held), 0) else reply(GONE) end
    elseif not held or (token == '0' and is_foreign(held) == 1) then
      reply(GONE)
    else
      local done = pcall('DEL', key)
      if type(done) == 'table' then
        reply(ERROR, refusal(done, 'DEL'))
      else
        written[key] = false
        reply(RELEASED)
        if waiting > 0 then call_on(queue, key) end
      end
    end
    a = a + (operation == 'force' and 2 or 1)
  end
end
replies[r + 1] = refused
if ARGV[2] ~= '' then replies[r + 2] = micros end
return replies
