"""Sentences in scripts without blanks, with words of them to search for."""

from __future__ import annotations

SENTENCES: dict[str, dict[str, str]] = {
    "Japanese": {
        "shiritori": "しりとりは言葉をつなげて遊ぶゲームです。",
        "tokyo": "東京タワーは高い電波塔として知られています。",
        "kyoto": "京都には古いお寺と神社がたくさんあります。",
        "weather": "明日の天気は雨のち晴れでしょう。",
        "cat": "黒猫が窓のそばで眠っている。",
        "train": "新幹線は大阪まで二時間半で走ります。",
        "cook": "カレーライスの作り方を母に教わりました。",
        "bank": "銀行の口座を開くには身分証明書が必要です。",
        "phone": "ｽﾏﾎの電池がすぐに切れてしまう。",
    },
    "Chinese": {
        "tea": "喝绿茶对身体有好处。",
        "wall": "长城是世界上最长的城墙。",
        "rain": "天气预报说明天会下大雨。",
        "bank": "请到银行办理信用卡业务。",
        "train": "高铁从北京到上海只需要四个小时。",
        "panda": "大熊猫喜欢吃竹子。",
        "book": "图书馆里有很多关于历史的书。",
    },
    "Korean": {
        "school": "아이들이 학교에서 수학을 공부합니다.",
        "kimchi": "김치는 한국의 전통 음식입니다.",
        "rain": "내일은 비가 많이 올 것 같아요.",
        "bank": "은행에 가서 계좌를 만들었어요.",
        "train": "기차를 타고 부산까지 갔습니다.",
        "music": "그는 음악을 들으며 산책했다.",
    },
    "Thai": {
        "language": "ภาษาไทยมีเสียงวรรณยุกต์ห้าเสียง",
        "rain": "พรุ่งนี้ฝนจะตกหนักในกรุงเทพ",
        "food": "ต้มยำกุ้งเป็นอาหารไทยที่มีชื่อเสียง",
        "bank": "เขาไปธนาคารเพื่อเปิดบัญชีเงินฝาก",
        "train": "รถไฟไปเชียงใหม่ออกตอนเย็น",
        "cat": "แมวดำนอนหลับอยู่ข้างหน้าต่าง",
    },
}
"""By language, texts by id."""

QUERIES: list[tuple[str, str, str]] = [
    *(("Japanese", "shiritori", query) for query in ("しりとり", "ゲーム", "言葉で遊ぶ")),
    *(("Japanese", "tokyo", query) for query in ("東京", "タワー", "電波塔の高さ")),
    *(("Japanese", "kyoto", query) for query in ("お寺", "京都の神社")),
    *(("Japanese", "weather", query) for query in ("天気", "雨は降りますか 明日")),
    *(("Japanese", "cat", query) for query in ("猫", "眠っている猫")),
    *(("Japanese", "bank", query) for query in ("銀行", "口座を開きたい")),
    *(("Japanese", "phone", query) for query in ("スマホ", "電池")),
    *(("Chinese", "tea", query) for query in ("绿茶", "茶")),
    *(("Chinese", "wall", query) for query in ("长城", "最长的城墙在哪里")),
    *(("Chinese", "bank", query) for query in ("信用卡", "银行")),
    *(("Chinese", "train", query) for query in ("北京到上海", "高铁")),
    *(("Chinese", "panda", query) for query in ("熊猫", "竹子")),
    *(("Korean", "school", query) for query in ("학교", "수학 공부")),
    *(("Korean", "kimchi", query) for query in ("김치", "한국 음식")),
    *(("Korean", "bank", query) for query in ("은행", "계좌")),
    *(("Korean", "train", query) for query in ("부산", "기차")),
    *(("Thai", "language", query) for query in ("ภาษาไทย", "วรรณยุกต์")),
    *(("Thai", "rain", query) for query in ("ฝนตก", "กรุงเทพ", "ฝน")),
    *(("Thai", "food", query) for query in ("อาหารไทย", "ต้มยำกุ้ง")),
    *(("Thai", "bank", query) for query in ("ธนาคาร", "เปิดบัญชี")),
]
"""The language, the document that a query should find first, and the query."""
