// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/calibration_text.h"

namespace sluice {

namespace {

// Prose, questions and answers, code, sums, tables and some other languages, in words of our own.
constexpr std::string_view kText = R"TEXT(The harbour wakes before the town does. At half past four the ice lorries back down the ramp, and the
women who sort the catch tie their aprons, light the stove and argue about the price of mackerel. By
six the first boats come in under the lighthouse, low in the water, with gulls behind them like torn
paper. A boy of nine runs along the quay with a rope over his shoulder. He is not supposed to be there
on a school day, and everyone pretends not to see him. "Throw it flat," his uncle calls, "not high!"
The rope lands in the water twice. The third time it holds, and nobody says anything, which is the
greatest praise he will get before dinner.

A bridge carries three kinds of load. Its own weight never goes away, and for a long span it is the
largest of them. Traffic comes and goes, and it never stands where the designer drew it. Wind and
temperature act on every part at once. An engineer writes down the worst sensible combination, adds a
margin for steel that is weaker than promised and for lorries that are heavier than allowed, and then
asks how the bridge would fail if it did. A good bridge bends, cracks and complains for years before
it breaks, so that people have time to notice.

Question: What is the difference between weather and climate?
Answer: Weather is what the air does today: rain at noon, wind from the west, eleven degrees. Climate
is what the air usually does at a place and a season, counted over about thirty years. One cold April
says little about the climate of a country, as one tall child says little about the height of a class.

Question: Why does bread rise?
Answer: Yeast eats sugar that the flour's starch releases and gives off carbon dioxide. The gas is
caught in a net of gluten, which forms when wet flour is kneaded. In the oven the bubbles expand, the
net sets, and the yeast dies at about 55 degrees.

Question: How many prime numbers are there below 30?
Answer: 2, 3, 5, 7, 11, 13, 17, 19, 23 and 29, so there are ten.

def running_median(values, width):
    """Returns the median of each window of `width` neighbours."""
    if width < 1 or width > len(values):
        raise ValueError(f"width {width} does not fit {len(values)} values")
    window = sorted(values[:width])
    medians = []
    for i in range(len(values) - width + 1):
        if i > 0:
            window.remove(values[i - 1])
            bisect.insort(window, values[i + width - 1])
        middle = width // 2
        if width % 2 == 1:
            medians.append(window[middle])
        else:
            medians.append((window[middle - 1] + window[middle]) / 2)
    return medians


class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def transfer(self, other, amount):
        if amount <= 0:
            raise ValueError("an amount is more than nothing")
        if amount > self.balance:
            raise RuntimeError(f"{self.owner} has {self.balance}, not {amount}")
        self.balance -= amount
        other.balance += amount
        self.history.append(("to", other.owner, amount))
        other.history.append(("from", self.owner, amount))

Dear Ms Okafor,

thank you for your letter of 3 March. We have looked into the two invoices that you mention. The first
one, number 20417, was sent twice by mistake; please ignore the copy. The second, number 20433, is for
the repair of the pump on 11 February and is still open. If you prefer to pay it in three parts, we
need only a short note from you by the end of the month. I apologise for the confusion and wish you a
quiet spring.

Yours sincerely,
Martin Hale, customer service

To solve 3x + 7 = 2x - 5, subtract 2x from both sides: x + 7 = -5. Then subtract 7: x = -12. Check by
putting it back: 3 * (-12) + 7 = -29, and 2 * (-12) - 5 = -29. Both sides agree.

A tank is filled by one pipe in 6 hours and emptied by another in 9 hours. With both open, it gains
1/6 - 1/9 = 3/18 - 2/18 = 1/18 of its volume an hour, so it is full after 18 hours.

If a train covers 180 kilometres in 2 hours and 15 minutes, its mean speed is 180 / 2.25 = 80
kilometres an hour. At that speed the remaining 60 kilometres take 45 minutes.

The probability of at least one six in four throws of a die is 1 minus the probability of none, which
is (5/6)^4 = 625/1296, about 0.482. So it is about 0.518, slightly better than even.

Let f(x) = x^3 - 3x. Its derivative is 3x^2 - 3, which is zero at x = 1 and x = -1. The second
derivative, 6x, is positive at 1, a minimum of -2, and negative at -1, a maximum of 2.

SELECT c.name, COUNT(o.id) AS orders, SUM(o.total) AS spent
FROM customers AS c
LEFT JOIN orders AS o ON o.customer_id = c.id AND o.created_at >= '2024-01-01'
WHERE c.country IN ('NL', 'BE', 'LU')
GROUP BY c.id, c.name
HAVING COUNT(o.id) > 3
ORDER BY spent DESC
LIMIT 20;

{"id": 8123, "type": "booking", "guests": [{"name": "Ines Duarte", "age": 34}, {"name": "Leo", "age": 6}],
 "rooms": ["double", "extra bed"], "nights": 4, "price": {"amount": 512.40, "currency": "EUR"},
 "paid": false, "notes": null}

#include <stdio.h>
#include <string.h>

/* Counts the words of a line; words are separated by blanks or tabs. */
static int count_words(const char *line) {
  int count = 0;
  int inside = 0;
  for (size_t i = 0; i < strlen(line); ++i) {
    const int blank = line[i] == ' ' || line[i] == '\t' || line[i] == '\n';
    if (!blank && !inside) ++count;
    inside = !blank;
  }
  return count;
}

int main(void) {
  char line[512];
  while (fgets(line, sizeof(line), stdin) != NULL) printf("%d\n", count_words(line));
  return 0;
}

The cell is a small factory with a wall. The wall decides what may enter: water and oxygen pass on
their own, sugar needs a door, and most poisons find no door that fits. Inside, instructions are kept
in the nucleus as long threads of DNA. They never leave it. A working copy is made of RNA, carried out
and read three letters at a time by a machine called the ribosome, which joins amino acids into a
protein. The protein folds, and its shape is its function: one carries iron, another cuts fat into
pieces, a third stands in the wall and becomes a door.

In 1854 cholera killed more than six hundred people around one street in London. A doctor drew a map
and marked every death with a short line. The lines were thickest around a public pump. People who
drank beer at the brewery nearby had been spared; a widow in another district, who had the water
brought to her because she liked its taste, had died. The handle of the pump was taken off. The map
did not prove how the illness moved, but it told people where to look, and that is what maps are for.

Tom: Did you bring the tickets?
Aylin: I thought you had them.
Tom: I had them yesterday. I put them on the shelf, next to the blue vase.
Aylin: We do not have a blue vase any more. Your nephew met it on Sunday.
Tom: Then they are under the sofa, with the rest of the vase.
Aylin: The concert starts in forty minutes.
Tom: Sofas are light when one is late.

How to change the tyre of a bicycle:
1. Open the brake and take the wheel out of the frame.
2. Let out the rest of the air and push the edge of the tyre toward the middle of the rim all around.
3. Lift the edge over the rim with two levers, a hand's width apart, and pull the tube out.
4. Run a finger carefully along the inside of the tyre; what made the hole may still be there.
5. Put a little air into the new tube, so that it keeps its shape, and lay it in, valve first.
6. Press the edge back with your thumbs, starting at the valve. Do not use the levers: they pinch.
7. Pump it up halfway, check that the tyre sits evenly on both sides, and pump up the rest.

Die alte Uhr im Flur ging seit Jahren zehn Minuten vor, und niemand stellte sie nach, weil alle sich
daran gewöhnt hatten. Wer pünktlich sein wollte, rechnete im Kopf. Erst als die Tochter nach langer
Zeit zu Besuch kam und ihren Zug verpasste, weil sie die Uhr für richtig hielt, holte der Vater die
Leiter. Er öffnete das Glas, schob den Zeiger zurück und blieb eine Weile stehen. "Jetzt geht sie
falsch", sagte die Mutter aus der Küche, und sie meinte es ernst.

Le marché du samedi occupe toute la place, de la mairie jusqu'à la fontaine. On y trouve des tomates
encore tièdes, du fromage de chèvre, des couteaux, des poules et parfois un accordéoniste qui ne
connaît que quatre chansons. Ma grand-mère n'achetait jamais rien au premier tour. Elle regardait,
elle comparait, elle saluait. Au deuxième tour seulement, elle sortait son porte-monnaie.

Cuando llueve en el desierto, las semillas que llevaban años dormidas despiertan en pocos días. Las
flores duran una semana, quizá dos, y durante ese tiempo los insectos trabajan sin descanso. Después
vuelve el silencio, pero debajo de la arena todo está preparado para la próxima vez.

水は零度で凍り、百度で沸く。けれども山の上では、もっと低い温度で沸くので、豆を煮るのに時間がかかる。

城市的早晨从豆浆和油条的香味开始。骑自行车的人、赶公交的人和遛狗的老人都在同一条街上。

Вечером снег перестал, и стало так тихо, что слышно было, как потрескивает лёд на реке.

# Release notes, version 2.4

- The importer reads files of more than 4 GiB.
- `--dry-run` prints what would change and changes nothing.
- A crash on empty directories is fixed (reported by three people on the same day).
- The option `--fast` is gone. It has done nothing since 2.1, except to make people feel better.

Known problems: on network drives a rename can take several seconds; the progress bar then stands
still although the work goes on.

for file in *.log; do
  lines=$(grep -c ERROR "$file")
  if [ "$lines" -gt 10 ]; then
    echo "$file: $lines errors" >> summary.txt
    gzip "$file"
  fi
done

Economists call a good public if nobody can be kept from using it and if one person's use takes
nothing from another's. A lighthouse is the usual example: a ship that does not pay sees the light as
well as one that does. So each captain has a reason to wait until the others pay, and without some
rule the light may never be built, although all of them would gain more than it costs. Taxes are one
such rule; harbour fees, clubs and habit are others. The interesting cases lie between: a road is
public at night and becomes private, in a sense, at eight in the morning, when every further car makes
the others wait.

The plaintiff states that the wall was built in May, without her consent, at a distance of forty
centimetres from the boundary. The defendant answers that the distance was agreed upon orally, in the
presence of his brother, and that the plaintiff watched the work for two weeks without objecting. The
court has to decide first whether such an agreement, if there was one, can be oral. It holds that it
can, but that silence alone is not consent. The brother is to be heard on 14 September.

An essay about maps. Every map leaves something out; that is how it differs from the land. A sailor's
chart has no hills, except the two that one steers by. A map of the underground railway bends rivers
into straight lines, and nobody has ever drowned because of it. What is left out tells who the map is
for. The oldest maps of a village show whose field is whose, and hardly anything else: no birds, no
wind, no path that children take to the quarry. When people complain that a map is wrong, they often
mean that it was drawn for somebody else.

function debounce(action, wait) {
  let timer = null;
  return function (...values) {
    clearTimeout(timer);
    timer = setTimeout(() => action.apply(this, values), wait);
  };
}

const search = debounce(async (text) => {
  const answer = await fetch(`/api/search?q=${encodeURIComponent(text)}`);
  if (!answer.ok) throw new Error(`search failed: ${answer.status}`);
  const { items } = await answer.json();
  list.innerHTML = items.map((item) => `<li>${item.title}</li>`).join("");
}, 250);

user: Can you explain recursion to a ten-year-old?
assistant: Imagine that you stand in a long queue and want to know your place in it, but you cannot see
the front. You ask the person before you: "What is your place?" They do not know either, so they ask
the person before them, and so on, until the question reaches the first one, who simply says "one."
Now the answers come back: "two," "three," and each person adds one to what they hear. Nobody had to
count the whole queue. Each one only did a small piece and trusted the next to do the same.

user: Write a short poem about a lost glove.
assistant:
It waves from the top of the railing,
one finger bent in the snow,
as though it had missed its departure
and watched the other one go.
Somebody's pocket is lighter,
somebody's hand is bare;
the wind tries it on every evening
and finds that it hardly fits there.

user: My code prints 0.30000000000000004 for 0.1 + 0.2. Is my computer broken?
assistant: No. Most decimal fractions cannot be written exactly with a finite number of binary digits,
as 1/3 cannot be written with a finite number of decimal ones. So 0.1 and 0.2 are stored as the nearest
numbers that can be, their sum is rounded once more, and the tiny differences add up. If you print
fewer digits, you see 0.3. If you count money, use whole cents or a decimal type.

user: Summarise the following in one sentence: The council met for five hours. It heard forty people,
most of them about the swimming pool. It decided to close the pool for two years, to repair the roof
first and the heating second, and to ask the province for half of the costs.
assistant: After hearing forty people, the council decided to close the swimming pool for two years of
repairs and to ask the province to pay half.

Sound is a wave of pressure. A string does not make much of it, because it is thin and cuts through the
air like a knife. So an instrument gives the string a large plate to shake: the table of a guitar, the
soundboard of a piano. The plate has favourite frequencies of its own, which is why two violins with
the same strings sound different, and why a maker taps the wood and listens before she cuts it.

The table below lists the four stations, their height in metres, and the mean rainfall in millimetres.

| station  | height | January | July | year |
|----------|--------|---------|------|------|
| Harbour  |      3 |      71 |   48 |  702 |
| Old Mill |    118 |      84 |   61 |  861 |
| Pass     |   1240 |     152 |  133 | 1710 |
| Plateau  |    955 |     101 |   95 | 1188 |

Rain grows with height up to the pass and falls behind it: the plateau lies in the shadow of the wind.

A theorem says that a continuous function on a closed interval takes every value between those at its
ends. The proof cuts the interval in half, again and again, and keeps the half on whose ends the
function lies on different sides of the value. The halves shrink toward one point. Were the function
there not equal to the value, it would stay on one side of it nearby, and so would both ends of a small
enough half, which contradicts how the halves were chosen.

Chapter 7. The letter had lain in the drawer for eleven years, between a broken watch and a receipt for
two deck chairs. Clara knew the handwriting before she knew the name. She did not open it at once. She
washed the cups, she fed the cat, which had been fed already, and she read the front of the envelope
so often that the words turned into shapes. At last she sat down by the window, where the light was
best, and slid a knife under the flap. There was a single sheet inside. It began in the middle of a
sentence, as if the writer had been talking for some time and had only now remembered to write.

Photosynthesis turns light, water and carbon dioxide into sugar and oxygen. It happens in two steps. In
the first, light splits water; the oxygen leaves, and the energy is stored in two carriers. In the
second, which needs no light, the carriers' energy builds sugar from carbon dioxide. Plants in hot dry
places open their pores only at night to save water, and store the carbon dioxide until morning.

Ingredients for four: 300 g lentils, 2 onions, 3 carrots, 1 stick of celery, 2 tablespoons of oil, 1
bay leaf, 1 litre of broth, salt, pepper, a dash of vinegar. Chop the vegetables finely and fry them
slowly until they smell sweet. Add the lentils and the broth, and cook for 35 minutes without a lid.
Take out the bay leaf. The vinegar comes last, off the heat; it wakes everything up.

type Shape interface {
	Area() float64
	Perimeter() float64
}

type Rectangle struct{ Width, Height float64 }

func (r Rectangle) Area() float64      { return r.Width * r.Height }
func (r Rectangle) Perimeter() float64 { return 2 * (r.Width + r.Height) }

func Largest(shapes []Shape) (Shape, error) {
	if len(shapes) == 0 {
		return nil, errors.New("no shapes")
	}
	best := shapes[0]
	for _, shape := range shapes[1:] {
		if shape.Area() > best.Area() {
			best = shape
		}
	}
	return best, nil
}

The telescope does not magnify so much as it collects. A pupil in the dark is seven millimetres wide; a
mirror of seventy centimetres has ten thousand times its area, and gathers in one second what the eye
would need hours for. That is why astronomers speak of the width of their mirrors and not of how large
things look. Beyond a point the air is the limit: it trembles, and a star becomes a dancing blot. So
mirrors are put on mountains, or in orbit, or are bent a thousand times a second to undo the dance.

Minutes of the meeting on 9 June. Present: Abara, Lindqvist, Moreau, Petrov (chair). Absent: Singh.
1. The budget for the third quarter was approved with one change: travel is cut by 8 per cent.
2. Lindqvist reported on the tests. Of 214 cases 209 pass; the other five concern the printer in room
   12 and will be repeated when it has been repaired.
3. Moreau asked whether the office could close on the Friday before the holiday. It could.
4. Next meeting: 23 June, 10:00, the small room.

Our garden lies on a slope, and in heavy rain the path turned into a stream. We tried gravel, which
moved to the neighbour's. We tried planks, which floated. In the end an old man who was passing said,
"You are trying to keep the water out. Show it where to go." So we dug a shallow ditch across the path
at every fourth step, lined it with flat stones, and planted willows below. It has rained twice as much
this year as last, and the path is dry.

public static Map<String, Integer> countWords(List<String> lines) {
    Map<String, Integer> counts = new TreeMap<>();
    for (String line : lines) {
        for (String word : line.toLowerCase().split("[^a-z']+")) {
            if (word.isEmpty()) continue;
            counts.merge(word, 1, Integer::sum);
        }
    }
    return counts;
}

The word "nice" once meant ignorant, then foolish, then fussy, then exact, as in "a nice distinction,"
and only after that pleasant. Words drift like boats at anchor: never far at a time, and always on a
chain of uses that resemble one another. Nobody decides it. A speaker stretches a word a little to fit
a case, the listener understands, and tomorrow the stretch is part of the word.

Symptoms of dehydration include thirst, a dry mouth, dark urine, headache and dizziness. In children,
watch for few wet nappies, no tears when crying and unusual sleepiness. Mild cases need water and a
little salt and sugar, in small sips. Confusion, a fast pulse or fainting need a doctor at once.

HTTP/1.1 200 OK
Content-Type: application/json
Cache-Control: max-age=60

{"status":"ok","queue":{"waiting":0,"running":3},"uptime_s":86412}

2024-05-17T08:31:02Z INFO  server started on port 8080 with 4 workers
2024-05-17T08:31:09Z WARN  worker 2 answers slowly: 1840 ms
2024-05-17T08:31:10Z ERROR connection to 10.0.0.12:5432 refused, trying again in 2 s
2024-05-17T08:31:12Z INFO  connected to 10.0.0.12:5432

Money has three jobs: people pay with it, count in it and keep it for later. Many things have done one
of these. Cattle were counted in, but are awkward to pay with; salt was paid with, but melts; gold keeps,
but few can tell its purity by hand. A coin with a stamp solves the last problem by moving it: one no
longer trusts the metal but whoever stamped it. Notes and numbers in a computer only take the idea to its
end. What is left is the trust, and central banks spend most of their time looking after that.

An operating system shares a machine among programs that must not notice one another. It gives each a
memory that seems to begin at zero and a processor that seems to be its own. Both are illusions kept up
by tables and timers. Thousands of times a second a timer fires, the registers of one program are put
away, those of another are taken out, and the second goes on as if nothing had happened. The hard part is
not the switching but the sharing: two programs that write to one file, a printer that is half done, a
lock that someone holds while asleep.

Once upon a time a fox and a heron decided to travel together. The fox knew the woods and the heron knew
the rivers, so each of them was lost half of the time. On the third evening they came to a bridge with a
toll of one good story. The fox told of a cheese that had fallen into a well, and the keeper yawned. The
heron told nothing at all. It stood on one leg for so long that the keeper began to wonder what it was
waiting for, and made up an answer, and another, and by midnight he had told himself the best story that
he had ever heard. "You may both pass," he said, "and come back soon."

To whom it may concern: Rosa Lindgren worked for us from August 2019 to December 2023, first as an
assistant in the laboratory and from 2021 as its head. She rebuilt the ordering of supplies, which cut
our costs by a fifth, and trained nine colleagues. She is exact without being slow, and says what she
thinks before it is too late to change anything. We are sorry to see her go.

Vaccines show the body a picture of an enemy. The picture may be the germ itself, weakened or killed, a
piece of its coat, or instructions from which cells make such a piece for a few days. White blood cells
learn its shape. Most of them die when nothing more happens; a few live on for years as memory. When the
real germ comes, the answer that would have taken two weeks takes two days, and that is usually enough.

Compare the two offers. The first costs 24 a month with no limit, and the contract runs for two years:
576 in all. The second costs 15 a month plus 0.05 for each minute beyond 200. Someone who talks for 300
minutes a month pays 15 + 100 * 0.05 = 20 a month, 480 in two years, and may leave at any time. The first
is better only for those who talk for more than 380 minutes, since 15 + 180 * 0.05 = 24.

The prefix of a word often tells its direction: "import" carries in, "export" carries out, "transport"
carries across, "report" carries back, and "deport" carries away. The root came from Latin, in which
"portare" means to carry. A porter carries bags; a portable lamp can be carried; and a rapport is, in a
way, something that is carried back and forth between two people.

use std::collections::HashMap;

fn group_by_length(words: &[&str]) -> HashMap<usize, Vec<String>> {
    let mut groups: HashMap<usize, Vec<String>> = HashMap::new();
    for word in words {
        groups.entry(word.len()).or_default().push(word.to_string());
    }
    for list in groups.values_mut() {
        list.sort();
    }
    groups
}

#[test]
fn groups_are_sorted() {
    let groups = group_by_length(&["pear", "fig", "plum", "date"]);
    assert_eq!(groups[&4], vec!["date", "pear", "plum"]);
    assert_eq!(groups[&3], vec!["fig"]);
}

Every spring the river carries so much mud that the old landing disappears. In some years it comes back
ten metres further down; in others it does not come back at all, and the ferry stops at whatever bank
will have it. The ferryman keeps a list of these landings on the wall of his cabin, with dates. There are
forty-one of them. He says that the river is writing something and that he is only keeping the minutes.

Abstract. We ask whether short breaks improve the accuracy of people who check X-ray pictures of bags. In
a study with 64 participants, half had a break of two minutes after every twenty pictures; the others had
one break of twenty minutes in the middle. The share of forbidden objects that were found was 0.83 with
short breaks and 0.76 with a long one (difference 0.07, 95 per cent interval 0.02 to 0.12). False alarms
did not differ. Participants with short breaks worked for four minutes longer in all. We discuss why the
effect is larger in the second hour and what it would cost to introduce such breaks at an airport.

Q: I planted tomatoes in March and they have grown tall and pale. What went wrong?
A: They had too little light for the warmth they were given, so they stretched toward the window. Put
them in a cooler and brighter place, plant them deeper when you move them out, up to the first leaves, and
do not feed them for two weeks. The buried part of the stem will grow roots.

Q: Is it true that glass is a very slow liquid?
A: No. Old panes are often thicker at the bottom because they were made unevenly and the heavy side was
set down. Glass has no crystals, as a liquid has none, but its parts are locked in place.

Q: Which is larger, 3/7 or 5/12?
A: Bring both to the denominator 84: 36/84 and 35/84. So 3/7 is larger, by 1/84.

Q: Translate "the early bird catches the worm" into German.
A: "Der frühe Vogel fängt den Wurm." A German would more often say "Morgenstund hat Gold im Mund."

Q: Name three causes of the decline of the passenger railway in the countryside.
A: Cars became cheap enough for most families, roads were built at public cost while lines had to earn
theirs, and villages shrank as work moved to the towns.

Q: What does this command do: tar -czf backup.tar.gz --exclude='*.tmp' notes/ ?
A: It packs the directory notes into a compressed archive named backup.tar.gz and leaves out files whose
names end in .tmp.

The orchestra tunes to the oboe, not because the oboe is never wrong but because it is hard to bend: its
pitch is fixed by the reed, so the others have to come to it. A good leader is sometimes chosen for the
same reason. The strings take the note first, then the wind, and for a few seconds a hundred people play
one thing together before they begin to play a hundred different ones.

<article>
  <h2>Opening hours</h2>
  <p>The library is open on weekdays from <b>9:00</b> to <b>18:30</b>, and on Saturdays until noon.</p>
  <ul>
    <li>Children's room: upstairs, next to the lift</li>
    <li>Newspapers: ground floor, <a href="/papers">list of titles</a></li>
  </ul>
</article>

A bat hears the world in slices. It calls, it listens for the echo, and from the delay it knows how far a
leaf is: six milliseconds mean one metre. When it closes in on a moth it calls faster and faster, up to two
hundred times a second, until the calls run together into a buzz. Some moths have ears for exactly this
buzz, and fold their wings and drop. Others click back, and nobody is quite sure whether that is a warning
that they taste bad or plain noise in the bat's ear.

The negotiations lasted for nine days. On the first, both sides read their demands aloud; on the second,
they denied having heard those of the other. Between the third and the seventh nothing was written down,
which the older delegates took for a good sign. On the eighth a sentence was found in which the word
"shall" could be replaced by "will endeavour to," and on the ninth everyone signed. The sentence has been
read by lawyers ever since, and has never been used.

Stars are born in clouds of gas that are colder than anything on Earth. A cloud that is left alone holds
itself up by what little warmth it has. Something has to push it: the wave of an explosion, a collision,
the arm of the galaxy sweeping past. Where it is dense, gravity wins, and the more it wins the denser the
place becomes. After some hundred thousand years the middle is so hot and so tight that hydrogen fuses to
helium. From then on the star is in balance: light presses out, weight presses in. Our sun has kept that
balance for four and a half billion years and is halfway through its fuel.

Checklist before you leave the cabin: close the gas, empty the ashes into the metal bucket, hang the
mattresses over the beam, drain the pump (both screws!), write the date and your names into the book, lock
the door, put the key back where you found it, and count the children.

Rule 12. A player who touches a piece must move it if a legal move exists. Rule 13. A pawn that reaches the
last row becomes another piece at the player's choice. Rule 14. The game is drawn if the same position, with
the same player to move, occurs for the third time and one of the players says so.

She wrote in her diary: "Tuesday. Wind from the north again. The goats have learned to open the gate, so I
have learned to close it differently. I wonder who of us will run out of ideas first." The next entry is
from Friday and says only: "I did."
)TEXT";

}  // namespace

std::string_view calibration_text() { return kText; }

}  // namespace sluice
