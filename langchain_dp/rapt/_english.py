"""Running English to calibrate on when no texts are given: written for this purpose, public, about nobody."""

from __future__ import annotations

TEXTS = (
    "I ordered two lamps on the third of May and only one of them arrived. The box was open on one side, and the "
    "glass of the shade had a long crack. Could you please send me another one, or give me the money back? I have "
    "kept the bill and I can send a picture if that helps.",
    "The film is slow at first, but the last hour is one of the best I have seen this year. The actors do not try "
    "too hard, the music is quiet, and the story never lies to you. It is funny and sad at the same time, which "
    "is not easy to do. I would see it again.",
    "The government said on Tuesday that the new law will not change the price of bread, but shops in the capital "
    "have already put up their prices by four percent. Farmers have asked for help after a dry summer. A vote in "
    "parliament is expected before the end of the week.",
    "What is the name of the river that runs through the city? Who built the first bridge over it, and when did "
    "people begin to use the old one as a market? How far is it from there to the sea?",
    "My mother has been taking these tablets for her heart since January. Last night she felt dizzy and her hands "
    "were cold. The doctor on the phone told us to wait until the morning, but we are worried. Should she take "
    "the next one or not? She also has some trouble with her left knee.",
    "We stayed in this hotel for three nights with our two children. The room was small but very clean, and the "
    "people at the desk were kind to us. Breakfast was simple. The street is loud until midnight, so ask for a "
    "room at the back. You can walk to the station in ten minutes.",
    "The company reported a profit of 2.3 million dollars for the second quarter, up from 1.9 million a year "
    "earlier. Sales in Asia grew the most. The chairman said that it would hire two hundred more workers, most of "
    "them in its factory near the border, and that it has no plans to move.",
    "Dear neighbours, on Saturday we are going to have a party in the garden, because our daughter has finished "
    "school. There will be music until eleven. If it gets too loud, just call us, or better, come over and have "
    "something to eat and drink with us!",
    "The team lost again last night. They had more of the ball, they ran more, and they hit the post twice, but "
    "the other side scored from its only good chance after a mistake in defence. The coach said that he still "
    "believes in his young players and that the season is long.",
    "This is a bad book. The people in it talk like machines, nothing happens for a hundred pages, and then "
    "everything happens at once. I do not know why so many critics liked it. If you want to read something good "
    "about the war, there are far better ones in any library.",
    "Please note that your account will be closed at the end of this month unless you log in once before then. If "
    "you no longer want it, you need not do anything. If you have lost your password, use the link below to set a "
    "new one. We will never ask you for it by mail.",
    "Scientists at the university have found that small birds which grow up near a road sing higher than others "
    "of the same kind. It may be that low notes cannot be heard over the traffic. The study looked at more than "
    "six hundred nests in five countries and took eight years.",
    "I started in this job four years ago as an assistant, and now I lead a group of nine. I like the work and "
    "most of my colleagues, but I am tired of being told one thing on Monday and another on Thursday. My husband "
    "thinks that I should look for something new before the summer.",
    "A storm moved across the south of the island during the night. Trees fell on houses and cars, and about "
    "forty thousand homes were without power. Two men were hurt when a wall came down. Schools will stay closed "
    "today, and the police asked people not to drive to the coast.",
    "The phone looks great and the screen is bright, but the battery does not last a day. The camera takes good "
    "pictures when there is light and poor ones when there is none. For this price you can get a better one. I "
    "sent it back after a week, and the shop paid for the post.",
    "He was born in a small town in the north, where his father worked in the mines and his mother taught music. "
    "After the army he studied law, but he soon left it to write for a newspaper. His first play was shown in a "
    "church hall. In later life he spoke little about those years.",
)
